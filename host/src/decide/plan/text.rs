//! Text of guests, brought within the limits of the API (rule S7). The same text always gives the same result,
//! and a result is left as it is when it comes by again.

use super::{Condition, Event};

/// Bytes of a condition's message, as in `metav1.Condition`.
const MAX_MESSAGE: usize = 32_768;
/// Bytes of a condition's reason, as in `metav1.Condition`.
const MAX_REASON: usize = 1_024;
/// Bytes of a condition's type, as in `metav1.Condition`.
const MAX_TYPE: usize = 316;
/// Bytes of an event's reason, as in `events.k8s.io/v1`.
const MAX_EVENT_REASON: usize = 128;
/// Bytes of an event's note, as in `events.k8s.io/v1`.
const MAX_NOTE: usize = 1_024;
/// Bytes of a refused reason that are shown in the message.
const MAX_SHOWN_REASON: usize = 256;
/// The reason of whoever gives none.
const NO_REASON: &str = "Unspecified";
/// What stands at the end of text that was cut.
const CUT_MARK: &str = "… (cut)";

impl Condition {
    /// This condition as the API takes it: a reason that breaks the pattern is replaced and shown in the
    /// message, an empty message says the reason, a long one is cut.
    pub fn within_limits(self) -> Self {
        let (reason, message) = reason_and_text(&self.reason, self.message, MAX_REASON, MAX_MESSAGE);
        Self { reason, message, ..self }
    }
}

impl Event {
    /// This event as the API takes it, by the rules of conditions.
    pub fn within_limits(self) -> Self {
        let (reason, note) = reason_and_text(&self.reason, self.note, MAX_EVENT_REASON, MAX_NOTE);
        Self { reason, note, ..self }
    }
}

fn reason_and_text(given: &str, text: String, max_reason: usize, max_text: usize) -> (String, String) {
    let reason = as_reason(given, max_reason);
    let text = match text {
        text if reason == given || given.is_empty() => text,
        text => format!("reason {:?}: {text}", cut(given, MAX_SHOWN_REASON)),
    };
    // Schemas in the field ask for at least one character.
    let text = if text.is_empty() { reason.clone() } else { cut(&text, max_text) };
    (reason, text)
}

/// One word by the API's pattern `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`, which resembles what was given.
fn as_reason(given: &str, max: usize) -> String {
    let mut reason = String::with_capacity(given.len().min(max));
    let mut at_word = false;
    for char in given.chars() {
        if char.is_ascii_alphanumeric() || matches!(char, '_' | ',' | ':') {
            if reason.is_empty() && !char.is_ascii_alphabetic() {
                reason.push_str("Reason");
            }
            reason.push(if at_word { char.to_ascii_uppercase() } else { char });
            at_word = false;
        } else {
            at_word = true;
        }
    }
    reason.truncate(max);
    reason.truncate(reason.trim_end_matches([',', ':']).len());
    if reason.is_empty() { NO_REASON.to_owned() } else { reason }
}

/// Whether the API takes this for a condition's type: `Ready`, or `example.org/Checked`.
pub(super) fn is_condition_type(text: &str) -> bool {
    let is_dns = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    text.len() <= MAX_TYPE
        && prefix.is_none_or(|prefix| prefix.split('.').all(is_dns))
        && name.starts_with(|char: char| char.is_ascii_alphanumeric())
        && name.ends_with(|char: char| char.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// The text, or as much of its beginning as fits into `limit` bytes together with a visible mark.
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(limit.saturating_sub(CUT_MARK.len()));
    format!("{}{CUT_MARK}", &text[..end])
}

/// How deep the brackets of JSON text nest; meaningless if the text is no JSON.
pub(super) fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

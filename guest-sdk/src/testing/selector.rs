//! Label selectors in the notation of `kubectl -l`.

use serde_json::Value;

/// Requirements that all have to hold.
#[derive(Debug)]
pub(super) struct Selector(Vec<Requirement>);

/// Whether a label has (or has not) one of some values; without values, whether it exists.
#[derive(Debug)]
struct Requirement {
    key: String,
    values: Option<Vec<String>>,
    is_negated: bool,
}

impl Selector {
    /// Reads `a=b, c!=d, e in (f, g), h notin (i), j, !k`; an empty text matches everything.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = end_of_requirement(rest);
            let one = rest[..end].trim();
            let requirement =
                requirement(one).ok_or_else(|| format!("label selector `{text}`: at `{one}`"))?;
            requirements.push(requirement);
            rest = rest.get(end + 1..).unwrap_or_default().trim_start();
        }
        Ok(Self(requirements))
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|requirement| {
            let label = labels.get(&requirement.key).and_then(Value::as_str);
            let holds = match (&requirement.values, label) {
                (None, label) => label.is_some(),
                (Some(values), Some(label)) => values.iter().any(|value| value == label),
                (Some(_), None) => false,
            };
            holds != requirement.is_negated
        })
    }
}

/// The first comma outside of parentheses, or the end.
fn end_of_requirement(text: &str) -> usize {
    let mut is_inside = false;
    let comma = text.find(|c| {
        is_inside = (is_inside || c == '(') && c != ')';
        c == ',' && !is_inside
    });
    comma.unwrap_or(text.len())
}

fn requirement(text: &str) -> Option<Requirement> {
    let (key, values, is_negated) = if let Some((head, values)) = text.split_once('(') {
        let (key, operator) = head.trim_end().rsplit_once(char::is_whitespace)?;
        let values = values.strip_suffix(')')?.split(',').map(|value| value.trim().to_owned()).collect();
        let is_negated = match operator {
            "in" => false,
            "notin" => true,
            _ => return None,
        };
        (key, Some(values), is_negated)
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Some(vec![value.trim().to_owned()]), true)
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Some(vec![value.trim().to_owned()]), false)
    } else if let Some(key) = text.strip_prefix('!') {
        (key, None, true)
    } else {
        (text, None, false)
    };
    let is_word = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let key = key.trim();
    let is_valid =
        !key.is_empty() && is_word(key) && values.iter().flatten().all(|value: &String| is_word(value));
    is_valid.then(|| Requirement { key: key.to_owned(), values, is_negated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_matches_as_kubectl_does() {
        let object =
            serde_json::json!({"metadata": {"labels": {"app": "web", "tier": "front", "x.io/y": ""}}});
        let cases = [
            ("", true),
            ("app=web", true),
            ("app==web,tier=back", false),
            ("app = web , tier != back", true),
            ("missing!=x", true),
            ("app in (db, web)", true),
            ("app in (db),tier", false),
            ("missing notin (a)", true),
            ("app notin (web)", false),
            ("x.io/y", true),
            ("x.io/y=", true),
            ("!missing", true),
            ("!app", false),
        ];
        for (text, expected) in cases {
            assert_eq!(Selector::parse(text).unwrap().matches(&object), expected, "{text}");
        }
    }

    #[test]
    fn selector_that_is_malformed_is_refused_with_its_text() {
        for text in ["=a", "a in b", "a in (b", "a near (b)", "a b", "a=b=c", ",a"] {
            let error = Selector::parse(text).err();
            assert!(error.as_ref().is_some_and(|error| error.contains(text)), "{text}: {error:?}");
        }
    }
}

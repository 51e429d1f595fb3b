//! The options of one child: `oarlock.dev/…` annotations that say how it is applied (rules A4, A7, A8 and A10).

use super::{Error, cut};
use crate::object::{ANNOTATION_UPDATE, ANNOTATION_WAVE, ObjectKey};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Taken out of the child: it is about the moment of taking over, and would stand there for ever.
const ADOPT: &str = "oarlock.dev/adopt";
/// Options of the design that nothing implements yet: doing nothing would be a promise broken in silence.
pub(super) const UNSUPPORTED: [&str; 1] = ["oarlock.dev/on-delete"];
/// Taken out as well: the object is somebody else's.
const OWNERSHIP: &str = "oarlock.dev/ownership";

/// Waves; nobody waits for thousands of them.
const WAVES: RangeInclusive<i32> = -1000..=1000;

/// How one child is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `oarlock.dev/adopt: "true"`: take over an object that exists already.
    pub adopt: bool,
    /// `oarlock.dev/update`.
    pub update: Update,
    /// `oarlock.dev/wave`: applied when all children of lower waves are ready, and deleted before they are.
    pub wave: i32,
    /// `oarlock.dev/ownership: fields`: of an object that exists already the given fields are owned, and nothing else
    /// (rule A10).
    pub fields: bool,
}

/// How a child that exists is changed (rule A8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// By server-side apply; a change that the API server does not allow is told.
    #[default]
    Apply,
    /// The same, but where the API server does not allow a change it is deleted and created anew.
    Replace,
    /// Not at all: its new content comes when somebody deletes it.
    OnDelete,
    /// As `Replace`, one of the siblings of its kind at a time, the next when all others are ready.
    Rolling,
}

impl Options {
    /// Reads the options of a child, and takes out those that are not applied with it.
    pub(super) fn take(key: &ObjectKey, annotations: &mut Map<String, Value>) -> Result<Self, Error> {
        let refused =
            |name, value: &str| Err(Error::OptionValue { child: key.clone(), name, value: cut(value, 64) });
        let adopt = match annotations.remove(ADOPT).as_ref().and_then(Value::as_str) {
            None | Some("false") => false,
            Some("true") => true,
            Some(value) => return refused(ADOPT, value),
        };
        let update = match annotations.get(ANNOTATION_UPDATE).and_then(Value::as_str) {
            None | Some("apply") => Update::Apply,
            Some("replace") => Update::Replace,
            Some("on-delete") => Update::OnDelete,
            Some("rolling") => Update::Rolling,
            Some(value) => return refused(ANNOTATION_UPDATE, value),
        };
        let wave = match annotations.get(ANNOTATION_WAVE).and_then(Value::as_str) {
            None => 0,
            Some(value) => match wave(value) {
                Some(wave) => wave,
                None => return refused(ANNOTATION_WAVE, value),
            },
        };
        let fields = match annotations.remove(OWNERSHIP).as_ref().and_then(Value::as_str) {
            None => false,
            Some("fields") if update == Update::Apply => {
                annotations.remove(ANNOTATION_UPDATE);
                annotations.remove(ANNOTATION_WAVE);
                true
            }
            Some(value) => return refused(OWNERSHIP, value),
        };
        Ok(Self { adopt, update, wave, fields })
    }

    /// Whether a child may carry this annotation.
    pub(super) fn is_one(name: &str) -> bool {
        [ANNOTATION_UPDATE, ANNOTATION_WAVE].contains(&name)
    }
}

/// Reads a wave; `None` if it is none.
pub fn wave(text: &str) -> Option<i32> {
    text.parse().ok().filter(|wave| WAVES.contains(wave))
}

/// What an option takes, in words.
pub(super) fn takes(name: &str) -> &'static str {
    match name {
        ADOPT => r#""true" or "false""#,
        ANNOTATION_UPDATE => "apply, replace, on-delete or rolling",
        ANNOTATION_WAVE => "a whole number from -1000 to 1000",
        OWNERSHIP => "fields, and that only where oarlock.dev/update is apply",
        _ => "nothing",
    }
}

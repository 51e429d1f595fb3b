//! What is to be done with one child.
//!
//! Never: I/O, clocks.

use super::desired;
use crate::{
    act::{contested::Told, drift, owned},
    decide::plan::{Child, Update},
    object::{ANNOTATION_APPLIED, LABEL_OWNED_BY, LABEL_PARENT, Object, field_manager},
    observe::discovery::Kind,
};
use serde_json::Value;

/// What to do with one child.
#[derive(Debug, PartialEq)]
pub(in crate::act) enum Decision {
    /// It holds what was applied.
    Nothing,
    /// It is being deleted.
    Await,
    /// It is not ours; whose it is, and what to do.
    Refuse(String),
    /// It stays as it is until others are ready; what it waits for.
    Hold(String),
    /// Others fight over it; it is left as it is.
    Leave(Told),
    /// Others fight over it: applied without force, with this body, to hear who they are.
    Ask(Value),
    /// Create or change it, with this body.
    Apply(Value),
    /// Its content stays, and what the host adds is put back.
    Restore,
}

/// Decides, from what is planned and what is there.
pub(in crate::act) fn of(
    child: &Child,
    kind: &Kind,
    live: Option<&Object>,
    plugin: &str,
    parent: &Object,
) -> Decision {
    let (body, applied) = desired::desired(child, kind, plugin, parent);
    let Some(live) = live else { return Decision::Apply(body) };
    if let Some(owner) = not_ours(live, plugin, parent, child.options.adopt) {
        return Decision::Refuse(owner);
    }
    if live.is_terminating() {
        return Decision::Await;
    }
    let manager = field_manager(plugin);
    let holds = |body: &Value| drift::first_difference(body, live, &manager).is_none();
    if child.options.update == Update::OnDelete {
        let is_kept = holds(&desired::bookkeeping(child, kind, plugin, parent));
        return if is_kept { Decision::Nothing } else { Decision::Restore };
    }
    let is_applied = live.annotations.get(ANNOTATION_APPLIED).is_some_and(|hash| *hash == applied);
    if is_applied && holds(&body) { Decision::Nothing } else { Decision::Apply(body) }
}

/// Whose an object is, if it is not ours to change (rule A4).
fn not_ours(live: &Object, plugin: &str, parent: &Object, adopt: bool) -> Option<String> {
    const REMEDY: &str = r#"set oarlock.dev/adopt: "true" on the planned child to take it over"#;
    match live.controller() {
        Some(owner) if owner.uid != parent.uid => {
            // An object has one controller: nothing that we could set would take it over.
            Some(format!("belongs to {} {}", owner.gvk.kind, owner.name))
        }
        _ if adopt => None,
        Some(_) => match live.labels.get(LABEL_OWNED_BY) {
            Some(other) if other != plugin && owns_any(live, other) => {
                Some(format!("belongs to plugin {other}; {REMEDY}"))
            }
            // Somebody took the label off (F12), or wrote there what is not so.
            Some(_) | None => None,
        },
        // Somebody took the owner reference off what we applied. Labels alone prove nothing: anyone can set them.
        None if live.labels.get(LABEL_PARENT).is_some_and(|uid| **uid == *parent.uid)
            && owns_any(live, plugin) =>
        {
            None
        }
        None => Some(format!("has no owner; {REMEDY}")),
    }
}

/// Whether a plugin has applied anything to it.
fn owns_any(live: &Object, plugin: &str) -> bool {
    !owned::of(live, &field_manager(plugin), false).is_null()
}

//! What a plugin's parents cannot say in their status, as one condition of the `Plugin`, and when it is looked at
//! again (rule S8).

use super::{Known, Rollout, recorded::Standing, say};
use crate::{
    act::status::Shortfall,
    decide::plan::{Condition, ConditionStatus},
    object::{Gvk, Object},
    plugins::ActivePlugin,
    report::Reason,
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long until a CRD that lacks something is looked at again: nobody tells when it changes.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long after its parents began to be planned what stood before of their statuses is believed: all of them are
/// planned by then, and a restart says nothing that it takes back a second later.
const UNPROVEN: Duration = Duration::from_secs(5);
const DEGRADED: &str = "Degraded";
/// Fields that the message names.
const NAMED: usize = 8;

impl Known {
    /// Before a version comes into force, or once all kinds are listed: parents are planned from now on, and what was
    /// known of the statuses of another version is not known of this one.
    pub(super) fn begin(&mut self, serving: Option<&ActivePlugin>, is_ready: bool, settings: &Object) {
        let version = self.version.as_ref().map(|version| &version.digest);
        let is_other = serving.map(|serving| &serving.digest) != version;
        if is_other {
            self.shortfalls = Arc::default();
            self.condition_types.add(say::recorded(settings).condition_types.iter().map(|one| &**one));
        }
        if is_other || is_ready && !self.synced {
            self.begun = Some(Instant::now());
        }
    }

    /// How long it takes yet until its parents are known to have been planned.
    pub(super) fn unproven(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |at| (at + UNPROVEN).saturating_duration_since(Instant::now()))
    }
}

impl Rollout {
    /// Asks the API server about the parent kind again if its status lacks something so far.
    pub(super) fn doubt(&self, name: &Arc<str>) {
        let in_force = self.registry.now();
        if let Some(plugin) = in_force.plugins.get(name).filter(|plugin| message(plugin).is_some()) {
            self.discovery.ask_again(&plugin.manifest.parent.gvk);
        }
    }

    /// Has a plugin looked at again that lacks something.
    pub(super) fn look_again(&self, name: &Arc<str>, settings: &Object, known: &Known) {
        let Some(plugin) = self.registry.now().plugins.get(name).cloned() else { return };
        if message(&plugin).is_some() {
            self.pending.later(name, LOOK_AGAIN);
        }
        let unproven = known.unproven();
        if !unproven.is_zero() && standing(settings).is_some() {
            self.pending.later(name, unproven);
        }
    }
}

/// `Degraded`, while something is lacking. For a moment after a version came into force, what stands there stays:
/// it is not known yet whether it is still so.
pub(super) fn condition(plugin: &ActivePlugin, settings: &Object, unproven: Duration) -> Option<Condition> {
    let standing = standing(settings).filter(|_| !unproven.is_zero());
    standing.or_else(|| {
        let message = message(plugin)?;
        Some(say::condition(DEGRADED, ConditionStatus::True, Reason::StatusUnsupported, message))
    })
}

/// The condition as it stands.
fn standing(settings: &Object) -> Option<Condition> {
    let Standing { reason, message, .. } = say::recorded(settings).condition(DEGRADED)?;
    Some(Condition { r#type: DEGRADED.to_owned(), status: ConditionStatus::True, reason, message })
}

fn message(plugin: &ActivePlugin) -> Option<String> {
    let gvk = &plugin.manifest.parent.gvk;
    if !plugin.manifest.status {
        return None;
    }
    if plugin.parent_kind.status.is_none() {
        let remedy = "add `subresources: {status: {}}` to that version in its CRD";
        return Some(format!(
            "{gvk} has no status subresource, its objects' status is not written; {remedy}"
        ));
    }
    in_words(gvk, &plugin.shortfalls.all())
}

/// The fields, those that are refused with the API server's words, and what to do.
fn in_words(gvk: &Gvk, shortfalls: &[Shortfall]) -> Option<String> {
    let paths = |is_refused: bool| {
        let those = shortfalls.iter().filter(|shortfall| shortfall.refusal.is_some() == is_refused);
        let named = those.clone().take(NAMED).map(|shortfall| match &shortfall.refusal {
            Some(words) => format!("{} ({words})", shortfall.path),
            None => shortfall.path.clone(),
        });
        let mut named: Vec<_> = named.collect();
        let more = those.count().saturating_sub(NAMED);
        if more > 0 {
            named.push(format!("{more} more"));
        }
        named.join(", ")
    };
    let undeclared = Some(paths(false)).filter(|paths| !paths.is_empty()).map(|paths| {
        format!("the schema of {gvk} does not have {paths}: add them to its CRD, or have the plugin leave them out")
    });
    let refused = Some(paths(true)).filter(|paths| !paths.is_empty()).map(|paths| {
        format!("the API server refuses {paths} in objects of {gvk}: change its CRD, or the plugin")
    });
    let all: Vec<_> = undeclared.into_iter().chain(refused).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_kind_paths_and_remedy_and_ends() {
        let gvk = Gvk::new("demo.example.com/v1", "Widget");
        let lack = |path: &str, refusal: Option<&str>| Shortfall {
            path: path.to_owned(),
            refusal: refusal.map(str::to_owned),
        };
        assert_eq!(in_words(&gvk, &[]), None);
        let both =
            [lack("status.a.b", None), lack("status.phase", Some("no such value")), lack("status.z", None)];
        assert_eq!(
            in_words(&gvk, &both).unwrap(),
            "the schema of Widget (demo.example.com/v1) does not have status.a.b, status.z: add them to its CRD, or \
             have the plugin leave them out; the API server refuses status.phase (no such value) in objects of \
             Widget (demo.example.com/v1): change its CRD, or the plugin"
        );
        let many: Vec<_> = (0..20).map(|n| lack(&format!("status.f{n}"), None)).collect();
        let message = in_words(&gvk, &many).unwrap();
        assert!(message.contains("status.f7, 12 more: ") && !message.contains("f8"), "{message}");
    }

    #[test]
    fn what_stands_is_read_from_the_status() {
        let settings = |status: &str| {
            let text = format!(
                r#"{{"metadata": {{"name": "p", "uid": "u", "resourceVersion": "1"}}, "status": {status}}}"#
            );
            Object::decode(&super::super::plugin_gvk(), &text).unwrap()
        };
        let degraded =
            r#"{"conditions": [{"type": "Ready"}, {"type": "Degraded", "reason": "R", "message": "m"}]}"#;
        let found = standing(&settings(degraded)).unwrap();
        assert_eq!((&*found.reason, &*found.message), ("R", "m"));
        assert_eq!(standing(&settings(r#"{"conditions": [{"type": "Ready"}]}"#)), None);
        assert_eq!(standing(&settings("{}")), None);
    }
}

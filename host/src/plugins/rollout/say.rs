//! What a `Plugin` says: its conditions and fields, and its events, in words an author can act on.

use super::{
    Candidate, Error, Known, Refused, Rollout,
    conditions::{loaded, progressing, ready},
    degraded, history, plugin_gvk,
    recorded::{active, text, texts},
};
pub(super) use super::{
    conditions::{condition, held, version},
    recorded::{Active, Recorded, from_texts, kinds, recorded},
};
use crate::{
    act::{events::Event, status},
    manifest::Manifest,
    object::{Gvk, Object},
    observe::{discovery::ConditionList, watch::WatchState},
    plugins::{ActivePlugin, load::Version, source},
    report::Reason,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The field manager of what the host itself says.
pub(super) const MANAGER: &str = "oarlock/host";

/// How a plugin stands.
pub(super) enum State {
    /// No version was ever accepted.
    Nothing,
    /// The ConfigMap is gone.
    Gone,
    /// An older plugin writes the status of the same parent kind.
    Claimed(Arc<str>),
    /// Its kinds are not all listed.
    Syncing((Reason, String)),
    /// Switched off.
    Paused,
    /// In force, and everything it needs is there; but its ConfigMap may be gone.
    Serving { has_source: bool },
}

impl Rollout {
    /// Records which version comes into force, and where what it writes may be found; all else that its `Plugin` says
    /// stays as it stands.
    pub(super) async fn record(
        &self,
        settings: &Object,
        version: &Version,
        kinds: &BTreeSet<Gvk>,
        field_kinds: &BTreeSet<Gvk>,
    ) -> Result<(), Error> {
        let status = settings.status.as_deref().and_then(|status| serde_json::from_str(status).ok());
        let mut fields: serde_json::Map<_, _> = status.unwrap_or_default();
        fields.retain(|name, _| !matches!(&**name, "conditions" | "observedGeneration"));
        let recorded = recorded(settings).active.filter(|active| *active.digest == *version.digest);
        let is_settled = recorded.is_some_and(|active| active.settled);
        fields.insert("active".to_owned(), active(&version.digest, &version.manifest, is_settled));
        for (name, kinds) in [("kinds", kinds), ("fieldKinds", field_kinds)] {
            if !kinds.is_empty() {
                fields.insert(name.to_owned(), texts(kinds).into());
            }
        }
        let desired = status::Desired {
            fields: Some(fields),
            conditions: Vec::new(),
            keep_other_own: true,
            observed_generation: settings.generation,
        };
        self.write(settings, &desired).await
    }

    /// Writes the status of a `Plugin` if something in it differs. `kinds`: what its children may be.
    pub(super) async fn say(
        &self,
        name: &Arc<str>,
        settings: &Object,
        known: &Known,
        kinds: Option<&BTreeSet<Gvk>>,
        state: &State,
    ) -> Result<(), Error> {
        let in_force = self.registry.now().plugins.get(name).cloned();
        let recorded = recorded(settings);
        let mut fields = serde_json::Map::new();
        if let Some(plugin) = &in_force {
            let is_settled = plugin.probation.is_none();
            fields.insert("active".to_owned(), active(&plugin.digest, &plugin.manifest, is_settled));
        }
        if let Some(content) = &known.content {
            fields.insert("sourceDigest".to_owned(), (&*content.digest).into());
        }
        if let Some(candidate) = &known.candidate {
            let Candidate { version, rollout, message, .. } = candidate;
            fields.insert(
                "candidate".to_owned(),
                serde_json::json!({
                    "digest": &*version.digest, "shortDigest": source::short(&version.digest),
                    "version": version.manifest.version, "rollout": rollout, "message": message,
                }),
            );
        }
        let history = known.history.as_deref().unwrap_or(&recorded.history);
        if !history.is_empty() {
            fields.insert("history".to_owned(), history::texts(history).into());
        }
        let watches = self.watched(known);
        if !watches.is_empty() {
            fields.insert("watches".to_owned(), watches.into());
        }
        if let Some(refused) = known.refused.as_ref().or(known.failed.as_ref()) {
            fields.insert(
                "refused".to_owned(),
                serde_json::json!({
                    "digest": refused.digest, "reason": refused.reason.as_str(), "message": refused.message,
                }),
            );
        }
        let condition_types = match in_force.as_deref() {
            Some(plugin) if has_atomic_conditions(plugin) => plugin.condition_types.all(),
            Some(_) => Vec::new(),
            None => recorded.condition_types,
        };
        for (name, list) in [
            ("kinds", kinds.map_or(recorded.kinds, texts)),
            ("fieldKinds", recorded.field_kinds),
            ("conditionTypes", condition_types),
        ] {
            if !list.is_empty() {
                fields.insert(name.to_owned(), list.into());
            }
        }
        let mut conditions = vec![ready(state, known, in_force.as_deref()), loaded(state, known)];
        conditions.extend(progressing(known, in_force.as_deref()));
        conditions
            .extend(in_force.and_then(|plugin| degraded::condition(&plugin, settings, known.unproven())));
        let desired = status::Desired {
            fields: Some(fields),
            conditions,
            keep_other_own: false,
            observed_generation: settings.generation,
        };
        self.write(settings, &desired).await
    }

    /// What is watched for a plugin, and how each watch does.
    fn watched(&self, known: &Known) -> Vec<serde_json::Value> {
        let snapshot = self.cache.snapshot();
        let watched = known.watches.iter().filter_map(|watch| {
            let scope = &watch.scope;
            let state = match self.watches.state(watch)? {
                WatchState::Missing(_) => "Missing",
                WatchState::Forbidden(_) => "Forbidden",
                // A moment without the API server is not worth a word.
                WatchState::Failing(_) if known.failing.is_long(watch, Instant::now()) => "Failing",
                WatchState::Failing(_) | WatchState::Live => "Live",
                // The list is in the cache a moment before the watch says so.
                WatchState::Listing if snapshot.is_synced(watch) => "Live",
                WatchState::Listing => "Listing",
            };
            let mut one = serde_json::json!({"kind": text(&watch.gvk), "state": state});
            for (name, value) in [("namespace", &scope.namespace), ("labelSelector", &scope.label_selector)] {
                if let Some(value) = value {
                    one[name] = value.as_str().into();
                }
            }
            Some(one)
        });
        watched.collect()
    }

    async fn write(&self, settings: &Object, desired: &status::Desired) -> Result<(), Error> {
        let writer = status::Writer {
            client: &self.client,
            cache: &self.cache,
            kind: &*self.discovery.kind(&plugin_gvk()).await?,
            manager: MANAGER,
            own_types: &[],
            refused: None,
            rest: Duration::ZERO,
            now: &self.clock.wall(),
        };
        status::write(writer, settings, desired).await.result.map(drop)
    }
}

/// Whether the list of conditions of its parents does not tell whose each is.
fn has_atomic_conditions(plugin: &ActivePlugin) -> bool {
    let status = plugin.parent_kind.status.as_ref();
    status.is_some_and(|status| status.conditions == Some(ConditionList::Atomic))
}

pub(super) fn refused(refused: &Refused, config_map: &Object) -> Event {
    Event {
        warning: true,
        reason: Reason::Refused.as_str().to_owned(),
        action: "Load",
        note: refused.message.clone(),
        related: Some((config_map.key.clone(), Some(config_map.version.clone()))),
    }
}

pub(super) fn swapped(plugin: &ActivePlugin, config_map: Option<&Object>) -> Event {
    Event {
        warning: false,
        reason: Reason::Swapped.as_str().to_owned(),
        action: "Swap",
        note: format!("{} serves", version(plugin)),
        related: config_map.map(|config_map| (config_map.key.clone(), Some(config_map.version.clone()))),
    }
}

pub(super) fn warning(reason: Reason, action: &'static str, note: String) -> Event {
    Event { warning: true, reason: reason.as_str().to_owned(), action, note, related: None }
}

pub(super) fn missing(gvk: &Gvk) -> (Reason, String) {
    (Reason::KindMissing, format!("the API server does not serve {gvk}; apply its CRD"))
}

pub(super) fn narrowed_in_vain(gvk: &Gvk) -> (Reason, String) {
    let message =
        format!("the manifest narrows {gvk} to a namespace, and the kind is cluster-scoped: leave it out");
    (Reason::ManifestInvalid, message)
}

pub(super) fn forbidden(gvk: &Gvk, why: &str, manifest: &Manifest) -> (Reason, String) {
    let declared = manifest.children.contains(gvk)
        || manifest.reads.iter().chain([&manifest.parent]).any(|selection| selection.gvk == *gvk);
    let remedy = if declared {
        "`oarlock check FILE --rbac` prints the rights that the plugin needs"
    } else {
        "an earlier version of the plugin had children of this kind, which may be left: keep its rights to them"
    };
    (Reason::KindForbidden, format!("{gvk} may not be listed and watched: {why}; {remedy}"))
}

pub(super) fn source_reason(error: &source::Error) -> Reason {
    match error {
        source::Error::None { .. } | source::Error::Several { .. } => Reason::NoComponent,
        source::Error::TooLarge { .. } => Reason::TooLarge,
        source::Error::Incomplete { .. } => Reason::SourceIncomplete,
        source::Error::Json(_)
        | source::Error::List(_)
        | source::Error::NoParts
        | source::Error::Damaged { .. }
        | source::Error::Mismatch
        | source::Error::Base64 { .. }
        | source::Error::Decompress { .. }
        | source::Error::NameTooLong => Reason::SourceInvalid,
    }
}

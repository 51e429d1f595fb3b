//! What a `Plugin` says: its conditions and fields, and its events, in words an author can act on.

use super::{Error, Known, Refused, Rollout, degraded, plugin_gvk};
use crate::{
    act::{events::Event, status},
    decide::plan::{Condition, ConditionStatus},
    manifest::Manifest,
    object::{Gvk, Object},
    observe::discovery::ConditionList,
    plugins::{ActivePlugin, load::Version, source},
    report::Reason,
};
use std::{collections::BTreeSet, fmt::Write as _, sync::Arc, time::Duration};

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
    /// In force, and everything it needs is there.
    Serving,
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
        fields.insert("active".to_owned(), active(&version.digest, &version.manifest));
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
            fields.insert("active".to_owned(), active(&plugin.digest, &plugin.manifest));
        }
        if let Some(refused) = &known.refused {
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

fn ready(state: &State, known: &Known, in_force: Option<&ActivePlugin>) -> Condition {
    let (status, reason, message) = match state {
        State::Serving => {
            let version = known.version.as_ref().map(describe).unwrap_or_default();
            (ConditionStatus::True, Reason::Active, format!("{version} serves"))
        }
        State::Nothing => match &known.refused {
            Some(refused) => (ConditionStatus::False, refused.reason, refused.message.clone()),
            None => (ConditionStatus::False, Reason::Syncing, "the component is being loaded".to_owned()),
        },
        State::Gone => (
            ConditionStatus::False,
            Reason::SourceMissing,
            "its ConfigMap is gone: objects and children stay as they are; delete this Plugin to forget it"
                .to_owned(),
        ),
        State::Claimed(winner) => (
            ConditionStatus::False,
            Reason::ParentClaimed,
            format!(
                "the older plugin {winner} writes the status of the same kind; this one takes over when it is gone"
            ),
        ),
        State::Syncing((reason, message)) => {
            let mut message = message.clone();
            if let (Some(serving), Some(version)) = (in_force, &known.version)
                && serving.digest != version.digest
            {
                let version = format!("version {} ({})", serving.manifest.version, short(&serving.digest));
                // Writing to a String cannot fail.
                let _ = write!(message, "; until then {version} serves on");
            }
            (ConditionStatus::False, *reason, message)
        }
        State::Paused => (
            ConditionStatus::False,
            Reason::Paused,
            "switched off by spec.paused: objects and children stay as they are".to_owned(),
        ),
    };
    condition("Ready", status, reason, message)
}

fn loaded(state: &State, known: &Known) -> Condition {
    match (&known.refused, &known.version, state) {
        (Some(refused), serving, _) => {
            let mut message = refused.message.clone();
            if let Some(serving) = serving {
                // Writing to a String cannot fail.
                let _ = write!(message, "; {} serves on", describe(serving));
            }
            condition("Loaded", ConditionStatus::False, refused.reason, message)
        }
        (None, Some(version), _) => condition(
            "Loaded",
            ConditionStatus::True,
            Reason::Active,
            format!("the ConfigMap holds {}", describe(version)),
        ),
        (None, None, State::Gone) => condition(
            "Loaded",
            ConditionStatus::False,
            Reason::SourceMissing,
            "its ConfigMap is gone".to_owned(),
        ),
        (None, None, _) => condition(
            "Loaded",
            ConditionStatus::Unknown,
            Reason::Syncing,
            "the component is being loaded".to_owned(),
        ),
    }
}

pub(super) fn condition(r#type: &str, status: ConditionStatus, reason: Reason, message: String) -> Condition {
    Condition { r#type: r#type.to_owned(), status, reason: reason.as_str().to_owned(), message }
}

fn describe(version: &Version) -> String {
    format!("version {} ({})", version.manifest.version, short(&version.digest))
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// The kinds that this plugin may have children of: those it declares, and those any version before declared.
pub(super) fn kinds(settings: &Object, manifest: &Manifest) -> BTreeSet<Gvk> {
    from_texts(&recorded(settings).kinds).chain(manifest.children.iter().cloned()).collect()
}

pub(super) fn from_texts(texts: &[String]) -> impl Iterator<Item = Gvk> {
    let words = texts.iter().filter_map(|text| text.split_once(' '));
    words.map(|(api_version, kind)| Gvk::new(api_version, kind))
}

fn texts(kinds: &BTreeSet<Gvk>) -> Vec<String> {
    kinds.iter().map(|gvk| format!("{} {}", gvk.api_version(), gvk.kind)).collect()
}

/// What a `Plugin` remembers of the plugin's past.
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Recorded {
    /// As `apiVersion kind`.
    pub(super) kinds: Vec<String>,
    pub(super) condition_types: Vec<String>,
    /// As `apiVersion kind`.
    pub(super) field_kinds: Vec<String>,
    pub(super) active: Option<Active>,
}

fn active(digest: &str, manifest: &Manifest) -> serde_json::Value {
    serde_json::json!({
        "digest": digest, "shortDigest": short(digest), "version": manifest.version,
        "parent": manifest.parent.gvk.to_string(),
    })
}

/// What it had in force last.
#[derive(serde::Deserialize)]
pub(super) struct Active {
    /// `Website (demo.oarlock.dev/v1)`.
    #[serde(default)]
    parent: String,
}

impl Active {
    pub(super) fn parent(&self) -> Option<Gvk> {
        let (kind, api_version) = self.parent.strip_suffix(')')?.split_once(" (")?;
        Some(Gvk::new(api_version, kind))
    }
}

pub(super) fn recorded(settings: &Object) -> Recorded {
    // The schema is ours; what does not fit it was not written by a host.
    let status = settings.status.as_deref();
    status.and_then(|status| serde_json::from_str(status).ok()).unwrap_or_default()
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

pub(super) fn swapped(plugin: &ActivePlugin, config_map: &Object) -> Event {
    Event {
        warning: false,
        reason: Reason::Swapped.as_str().to_owned(),
        action: "Swap",
        note: format!("version {} ({}) serves", plugin.manifest.version, short(&plugin.digest)),
        related: Some((config_map.key.clone(), Some(config_map.version.clone()))),
    }
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
        source::Error::Json(_)
        | source::Error::Base64 { .. }
        | source::Error::Decompress { .. }
        | source::Error::NameTooLong => Reason::SourceInvalid,
    }
}

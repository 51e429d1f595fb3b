//! What a `Plugin` says: its conditions and fields, and its events, in words an author can act on.

use super::{Candidate, Error, Known, Refused, Rollout, degraded, history, plugin_gvk};
use crate::{
    act::{events::Event, status},
    decide::plan::{Condition, ConditionStatus},
    manifest::Manifest,
    object::{Gvk, Object},
    observe::{discovery::ConditionList, watch::WatchState},
    plugins::{
        ActivePlugin,
        load::Version,
        probation::FIRST_WAVE,
        resource::{EarlierVersion, RefusedVersion, RolloutStrategy},
        source,
    },
    report::Reason,
};
use std::{collections::BTreeSet, fmt::Write as _, sync::Arc, time::Duration};
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
                    "digest": &*version.digest, "shortDigest": short(&version.digest),
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
        let watched = known.watches.iter().filter_map(|watch| {
            let scope = &watch.scope;
            let state = match self.watches.state(watch)? {
                WatchState::Missing(_) => "Missing",
                WatchState::Forbidden(_) => "Forbidden",
                // A moment without the API server is not worth a word.
                WatchState::Failing(_) if known.failing.is_long(watch, Instant::now()) => "Failing",
                WatchState::Failing(_) | WatchState::Live => "Live",
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

fn ready(state: &State, known: &Known, in_force: Option<&ActivePlugin>) -> Condition {
    let (status, reason, message) = match state {
        State::Serving { has_source } => {
            let version = known.version.as_ref().map(describe).unwrap_or_default();
            let gone = if *has_source { "" } else { ", though its ConfigMap is gone" };
            (ConditionStatus::True, Reason::Active, format!("{version} serves{gone}"))
        }
        State::Nothing => match (&known.refused, &known.overruled, &known.candidate) {
            (Some(refused), ..) => (ConditionStatus::False, refused.reason, refused.message.clone()),
            (None, Some((reason, message)), _) => (ConditionStatus::False, *reason, message.clone()),
            (None, None, Some(candidate)) => {
                (ConditionStatus::False, Reason::AwaitingApproval, awaiting(candidate))
            }
            (None, None, None) => {
                (ConditionStatus::False, Reason::Syncing, "the component is being loaded".to_owned())
            }
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
                // Writing to a String cannot fail.
                let _ = write!(message, "; until then {} serves on", self::version(serving));
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
    let serves_on = |message: &str| {
        let mut message = message.to_owned();
        if let Some(serving) = &known.version {
            // Writing to a String cannot fail.
            let _ = write!(message, "; {} serves on", describe(serving));
        }
        message
    };
    let (status, reason, message) = match (&known.refused, &known.failed, &known.overruled, &known.content) {
        (Some(refused), ..) => (ConditionStatus::False, refused.reason, serves_on(&refused.message)),
        (None, Some(failed), ..) => (ConditionStatus::False, failed.reason, failed.message.clone()),
        (None, None, Some((reason, message)), _) => (ConditionStatus::False, *reason, serves_on(message)),
        (None, None, None, Some(content)) => {
            (ConditionStatus::True, Reason::Active, format!("the ConfigMap holds {}", describe(content)))
        }
        (None, None, None, None) if matches!(state, State::Gone | State::Serving { has_source: false }) => {
            (ConditionStatus::False, Reason::SourceMissing, serves_on("its ConfigMap is gone"))
        }
        (None, None, None, None) => {
            (ConditionStatus::Unknown, Reason::Syncing, "the component is being loaded".to_owned())
        }
    };
    condition("Loaded", status, reason, message)
}

/// `Progressing`, while a new version is on its way.
fn progressing(known: &Known, in_force: Option<&ActivePlugin>) -> Option<Condition> {
    let is_true = |reason, message| Some(condition("Progressing", ConditionStatus::True, reason, message));
    if let Some(candidate) = &known.candidate {
        return match candidate.rollout {
            RolloutStrategy::Canary => {
                let message = format!("{}: {}", describe(&candidate.version), candidate.message);
                is_true(Reason::Canary, message)
            }
            RolloutStrategy::Preview | RolloutStrategy::Automatic => {
                is_true(Reason::AwaitingApproval, awaiting(candidate))
            }
        };
    }
    let plugin = in_force?;
    let probation = plugin.probation.as_ref()?;
    if let Some(objects) = probation.held() {
        return is_true(Reason::Held, held(plugin, objects));
    }
    let (visited, of) = probation.visits();
    let is_under_way = visited < of && of > FIRST_WAVE;
    is_under_way.then(|| {
        let message = format!("{} is on its way: {visited} of {of} objects", version(plugin));
        condition("Progressing", ConditionStatus::True, Reason::RollingOut, message)
    })
}

fn awaiting(candidate: &Candidate) -> String {
    let Candidate { version, message, .. } = candidate;
    format!("{} waits for approval: {message}", describe(version))
}

/// Why a version is held, and what to do.
pub(super) fn held(plugin: &ActivePlugin, objects: usize) -> String {
    format!(
        "{} is held: it would delete children of more objects than a new version may by itself, {objects} of them so \
         far; see which with `oarlock diff {name}`, then `oarlock approve {name}` or `oarlock rollback {name}`",
        version(plugin),
        name = plugin.name
    )
}

/// A version in force, in words.
pub(super) fn version(plugin: &ActivePlugin) -> String {
    format!("version {} ({})", plugin.manifest.version, short(&plugin.digest))
}

pub(super) fn condition(r#type: &str, status: ConditionStatus, reason: Reason, message: String) -> Condition {
    Condition { r#type: r#type.to_owned(), status, reason: reason.as_str().to_owned(), message }
}

fn describe(version: &Version) -> String {
    format!("version {} ({})", version.manifest.version, short(&version.digest))
}

pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// The kinds that this plugin may have children of: those that its versions declare, and those any before declared.
pub(super) fn kinds<'a>(recorded: &Recorded, versions: impl Iterator<Item = &'a Version>) -> BTreeSet<Gvk> {
    let declared = versions.flat_map(|version| version.manifest.children.iter().cloned());
    from_texts(&recorded.kinds).chain(declared).collect()
}

pub(super) fn from_texts(texts: &[String]) -> impl Iterator<Item = Gvk> {
    let words = texts.iter().filter_map(|text| text.split_once(' '));
    words.map(|(api_version, kind)| Gvk::new(api_version, kind))
}

fn texts(kinds: &BTreeSet<Gvk>) -> Vec<String> {
    kinds.iter().map(text).collect()
}

fn text(gvk: &Gvk) -> String {
    format!("{} {}", gvk.api_version(), gvk.kind)
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
    pub(super) refused: Option<RefusedVersion>,
    pub(super) history: Vec<EarlierVersion>,
    conditions: Vec<Standing>,
}

#[derive(serde::Deserialize)]
struct Standing {
    r#type: String,
    #[serde(default)]
    reason: String,
}

impl Recorded {
    /// Whether the version in force was held.
    pub(super) fn is_held(&self) -> bool {
        self.conditions.iter().any(|one| one.r#type == "Progressing" && one.reason == Reason::Held.as_str())
    }

    /// What was in force, as one of those before.
    pub(super) fn earlier(&self) -> Option<EarlierVersion> {
        let Active { digest, version, .. } = self.active.as_ref()?;
        Some(EarlierVersion { digest: digest.clone(), version: version.clone() })
    }
}

fn active(digest: &str, manifest: &Manifest, is_settled: bool) -> serde_json::Value {
    serde_json::json!({
        "digest": digest, "shortDigest": short(digest), "version": manifest.version,
        "parent": manifest.parent.gvk.to_string(), "settled": is_settled,
    })
}

/// What it had in force last.
#[derive(serde::Deserialize)]
pub(super) struct Active {
    #[serde(default)]
    pub(super) digest: String,
    #[serde(default)]
    pub(super) version: String,
    /// `Website (demo.oarlock.dev/v1)`.
    #[serde(default)]
    parent: String,
    #[serde(default)]
    pub(super) settled: bool,
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
        source::Error::Json(_)
        | source::Error::Base64 { .. }
        | source::Error::Decompress { .. }
        | source::Error::NameTooLong => Reason::SourceInvalid,
    }
}

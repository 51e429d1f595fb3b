//! What a `Plugin` has on record of the plugin's past: in its status, so that it outlives the host.

use crate::{
    manifest::Manifest,
    object::{Gvk, Object},
    plugins::{
        load::Version,
        resource::{EarlierVersion, RefusedVersion},
        source::short,
    },
    report::Reason,
};
use std::collections::BTreeSet;

/// The kinds that this plugin may have children of: those that its versions declare, and those any before declared.
pub(super) fn kinds<'a>(recorded: &Recorded, versions: impl Iterator<Item = &'a Version>) -> BTreeSet<Gvk> {
    let declared = versions.flat_map(|version| version.manifest.children.iter().cloned());
    from_texts(&recorded.kinds).chain(declared).collect()
}

pub(super) fn from_texts(texts: &[String]) -> impl Iterator<Item = Gvk> {
    let words = texts.iter().filter_map(|text| text.split_once(' '));
    words.map(|(api_version, kind)| Gvk::new(api_version, kind))
}

pub(super) fn texts(kinds: &BTreeSet<Gvk>) -> Vec<String> {
    kinds.iter().map(text).collect()
}

pub(super) fn text(gvk: &Gvk) -> String {
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

/// A condition as it stands.
#[derive(serde::Deserialize)]
pub(super) struct Standing {
    r#type: String,
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) message: String,
}

impl Recorded {
    /// A condition as it stands.
    pub(super) fn condition(self, r#type: &str) -> Option<Standing> {
        self.conditions.into_iter().find(|one| one.r#type == r#type)
    }

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

pub(super) fn active(digest: &str, manifest: &Manifest, is_settled: bool) -> serde_json::Value {
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

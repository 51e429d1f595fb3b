//! Versions that were in force, kept in the cluster: what a host may go back to, and what serves on when the source
//! is gone or holds something worse.
//!
//! Each is immutable ConfigMaps in the host's namespace, named after plugin and digest, owned by the `Plugin`: they go
//! with it.

use super::{Error, Known, RETRY, Rollout, Terms, plugin_gvk, say, source};
use crate::{
    object::{Gvk, Object, ObjectKey},
    observe::{
        client::{self, Answer},
        discovery::Kind,
    },
    plugins::{
        load::{self, Version},
        resource::EarlierVersion,
    },
    report::chain,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};
use tracing::warn;

/// On the ConfigMaps of a version that is kept: the plugin's name.
const LABEL_VERSION_OF: &str = "oarlock.dev/version-of";
/// Earlier versions that are kept unless the `Plugin` says otherwise.
const LIMIT: usize = 3;

/// The name of what holds a version.
pub(crate) fn stored_name(plugin: &str, digest: &str) -> String {
    format!("oarlock-version-{plugin}-{}", source::short(digest))
}

impl Rollout {
    /// Keeps the component of the version in force, unless it is kept already. What stands against it is told, and
    /// tried again where that helps.
    pub(super) async fn keep(&self, name: &Arc<str>, known: &Known, settings: &Object) {
        let Some(version) = &known.version else { return };
        let Err(error) = self.try_keep(settings, version).await else { return };
        if error.answer == Answer::Forbidden {
            version.bytes().take();
        } else {
            self.pending.later(name, RETRY);
        }
        let error: &dyn std::error::Error = &error;
        warn!(
            plugin = &**name,
            digest = &*version.digest,
            error,
            "the version in force is not kept for later"
        );
    }

    async fn try_keep(&self, settings: &Object, version: &Version) -> Result<(), Error> {
        if version.bytes().is_none() {
            return Ok(());
        }
        let kind = self.discovery.kind(&config_map_gvk()).await?;
        let name = stored_name(&settings.key.name, &version.digest);
        let is_stored = async |key: &ObjectKey| -> Result<bool, Error> {
            Ok(self.client.get(&kind, key).await?.is_some_and(|stored| is_of(&stored, &settings.uid)))
        };
        // It is written last, so all the rest is there too: most of all after a restart.
        let is_kept = is_stored(&self.stored_key(&name)).await?;
        if is_kept {
            version.bytes().take();
        }
        let Some(bytes) = version.bytes().clone() else { return Ok(()) };
        let packed = {
            let name = name.clone();
            // It takes seconds for a large one.
            self.engine.apart(move || source::pack(&name, &bytes)).await
        };
        let Some(Ok(packed)) = packed else {
            warn!(plugin = &*settings.key.name, "the version in force cannot be compressed, and is not kept");
            return Ok(());
        };
        for mut config_map in packed {
            let key = self.stored_key(config_map["metadata"]["name"].as_str().unwrap_or(&name));
            if is_stored(&key).await? {
                continue;
            }
            config_map["metadata"]["namespace"] = (*self.config.namespace).into();
            // Neither a source nor a part of one.
            config_map["metadata"]["labels"] = json!({LABEL_VERSION_OF: &*settings.key.name});
            config_map["metadata"]["ownerReferences"] = json!([{
                "apiVersion": plugin_gvk().api_version(), "kind": "Plugin",
                "name": &*settings.key.name, "uid": &*settings.uid,
            }]);
            config_map["immutable"] = true.into();
            let body = config_map.to_string();
            let apply = client::Apply { manager: say::MANAGER, force: true, status: false, body: &body };
            self.client.apply(&kind, &key, apply).await?;
        }
        version.bytes().take();
        Ok(())
    }

    /// A version that was kept; `None`, with a word in the log, if it is not there or can no longer be loaded.
    pub(super) async fn recall(
        &self,
        settings: &Object,
        digest: &str,
        Terms { limits, allowed, .. }: &Terms,
    ) -> Result<Option<Version>, Error> {
        let kind = self.discovery.kind(&config_map_gvk()).await?;
        let plugin = &*settings.key.name;
        let name = stored_name(plugin, digest);
        let stored = self.client.get(&kind, &self.stored_key(&name)).await?;
        // One of a Plugin that is gone goes too.
        let Some(stored) = stored.filter(|stored| is_of(stored, &settings.uid)) else { return Ok(None) };
        let mut parts = BTreeMap::new();
        for name in source::needed(&stored) {
            if let Some(part) = self.client.get(&kind, &self.stored_key(&name)).await? {
                parts.insert(name, Arc::new(part));
            }
        }
        let find = |name: &str| parts.get(name).cloned();
        let found = source::component(&stored, find, limits.component_bytes).map_err(|error| chain(&error));
        let found = found.and_then(|component| {
            if component.digest == digest {
                Ok(component)
            } else {
                Err("it holds another component".to_owned())
            }
        });
        let loaded = match found {
            Ok(component) => load::version(&self.engine, component, limits, allowed)
                .await
                .map_err(|(_, error)| chain(&error)),
            Err(why) => Err(why),
        };
        match loaded {
            Ok(version) => {
                // It comes from there.
                version.bytes().take();
                Ok(Some(version))
            }
            Err(error) => {
                warn!(plugin, digest, config_map = name, error, "an earlier version cannot be loaded");
                Ok(None)
            }
        }
    }

    /// Notes that a version is no longer in force, and lets go of those that are too many.
    pub(super) async fn note_replaced(
        &self,
        name: &Arc<str>,
        known: &mut Known,
        replaced: Option<EarlierVersion>,
        limit: Option<i32>,
    ) {
        if let Err(error) = self.try_note_replaced(name, known, replaced, limit).await {
            warn!(
                plugin = &**name,
                error = &error as &dyn std::error::Error,
                "an earlier version stays too long"
            );
        }
    }

    async fn try_note_replaced(
        &self,
        plugin: &str,
        known: &mut Known,
        replaced: Option<EarlierVersion>,
        limit: Option<i32>,
    ) -> Result<(), Error> {
        let now = known.version.as_ref().map(|version| version.digest.clone());
        let limit = limit.map_or(LIMIT, |limit| usize::try_from(limit).unwrap_or_default().max(1));
        let failed = known.failed.as_ref().map(|failed| failed.digest.clone());
        let history = known.history.get_or_insert_default();
        if let Some(replaced) = replaced {
            history.retain(|one| one.digest != replaced.digest);
            history.insert(0, replaced);
        }
        history.retain(|one| Some(&*one.digest) != now.as_deref());
        let is_good = |one: &EarlierVersion| Some(&one.digest) != failed.as_ref();
        let (mut kept, mut gone): (Vec<_>, Vec<_>) = std::mem::take(history).into_iter().partition(is_good);
        gone.extend(kept.split_off(limit.min(kept.len())));
        *history = kept;
        for one in gone {
            self.drop_stored(&stored_name(plugin, &one.digest)).await?;
        }
        Ok(())
    }

    async fn drop_stored(&self, name: &str) -> Result<(), Error> {
        let kind = self.discovery.kind(&config_map_gvk()).await?;
        let key = self.stored_key(name);
        let Some(stored) = self.client.get(&kind, &key).await? else { return Ok(()) };
        // The list last: what it names is found again as long as it is there.
        for part in source::needed(&stored) {
            let key = self.stored_key(&part);
            if let Some(part) = self.client.get(&kind, &key).await? {
                self.delete_stored(&kind, &key, &part.uid).await?;
            }
        }
        self.delete_stored(&kind, &key, &stored.uid).await
    }

    async fn delete_stored(&self, kind: &Kind, key: &ObjectKey, uid: &str) -> Result<(), Error> {
        match self.client.delete(kind, key, uid).await {
            // Somebody else was faster.
            Err(error) if matches!(error.answer, Answer::NotFound | Answer::UidMismatch) => Ok(()),
            result => result,
        }
    }

    fn stored_key(&self, name: &str) -> ObjectKey {
        ObjectKey {
            gvk: config_map_gvk(),
            namespace: Some((*self.config.namespace).into()),
            name: name.into(),
        }
    }
}

/// Whether it is kept for the `Plugin` of this uid, rather than for one before it.
fn is_of(stored: &Object, uid: &str) -> bool {
    stored.owners.iter().any(|owner| *owner.uid == *uid)
}

fn config_map_gvk() -> Gvk {
    Gvk::new("v1", "ConfigMap")
}

/// As `status.history` has it.
pub(super) fn texts(history: &[EarlierVersion]) -> Vec<Value> {
    history.iter().map(|one| json!({"digest": one.digest, "version": one.version})).collect()
}

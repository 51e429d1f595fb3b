//! Of the versions that there are, the one that is to be in force, loaded; and the one to go back to (rules P2, P3).

use super::{
    Candidate, Error, Known, Refused, Rollout, Terms,
    choice::{self, Facts},
    say,
};
use crate::{
    object::Object,
    plugins::{
        ActivePlugin,
        load::Version,
        resource::{EarlierVersion, RolloutStrategy},
        source::{bare, short},
    },
    report::Reason,
};
use std::sync::Arc;
use tracing::warn;

impl Rollout {
    /// Chooses and loads.
    pub(super) async fn choose(
        &self,
        name: &Arc<str>,
        known: &mut Known,
        settings: &Object,
        terms: &Terms,
    ) -> Result<(), Error> {
        let serving = self.registry.now().plugins.get(name).cloned();
        if let Some(serving) = &serving {
            self.judge(name, known, serving, settings);
        }
        let recorded = say::recorded(settings).active;
        let content = known.content.as_ref().map(|content| content.digest.clone());
        let is_over = |failed: &Refused| content.as_ref().is_some_and(|content| **content != *failed.digest);
        if known.failed.as_ref().is_some_and(is_over) {
            known.failed = None;
        }
        let failed = known.failed.as_ref().map(|failed| failed.digest.clone());
        let mut active = serving.as_ref().map(|serving| serving.digest.to_string());
        active = active.or_else(|| recorded.as_ref().map(|recorded| recorded.digest.clone()));
        let is_back = active.is_some() && active == failed;
        if is_back {
            let before = known.before.as_ref().map(|before| before.digest.to_string());
            active = before.or_else(|| Some(known.history.as_ref()?.first()?.digest.clone()));
        }
        let is_proven = known.candidate.as_ref().is_some_and(|candidate| {
            candidate.is_proven && Some(&candidate.version.digest) == content.as_ref()
        });
        let spec = &terms.spec;
        let choice = choice::choose(&Facts {
            content: content.as_deref(),
            active: active.as_deref(),
            failed: failed.as_deref(),
            is_proven,
            spec,
        });
        known.candidate = match (choice.candidate, &known.content, known.candidate.take()) {
            (Some(rollout), Some(content), Some(before))
                if before.version.digest == content.digest && before.rollout == rollout =>
            {
                Some(before)
            }
            (Some(rollout), Some(content), _) => Some(Candidate::new(content, rollout)),
            _ => None,
        };
        known.overruled = choice.pinned.map(|pin| {
            let holds = content.as_deref().map(short).unwrap_or_default();
            let message = format!(
                "the ConfigMap holds version {holds}, and spec.digest allows only {}: put that one there, or set \
                 spec.digest to the one that is there",
                short(&pin)
            );
            (Reason::DigestMismatch, message)
        });
        let Some(digest) = choice.serve else {
            known.version = None;
            return Ok(());
        };
        let version = match known.loaded(&digest) {
            Some(version) => Some(version.clone()),
            None => self.recall(settings, &digest, terms).await?,
        };
        let Some(version) = version else {
            if choice.is_approved {
                known
                    .overruled
                    .get_or_insert_with(|| missing(known.history.as_deref().unwrap_or_default(), &digest));
            }
            return Ok(());
        };
        known.is_approved = choice.is_approved || is_back;
        if known.version.as_ref().is_none_or(|before| before.digest != version.digest) {
            let replaced = known.version.take();
            known.version = Some(version);
            known.before = match (replaced, &serving) {
                _ if known.is_approved => None,
                (Some(replaced), Some(serving)) if replaced.digest == serving.digest => Some(replaced),
                (_, Some(serving)) => Some(Version::of(serving)),
                (_, None) => {
                    let before = recorded.and_then(|recorded| match recorded.digest == digest {
                        true if recorded.settled => None,
                        true => known.history.as_ref()?.first().map(|one| one.digest.clone()),
                        false => Some(recorded.digest),
                    });
                    match before {
                        Some(before) => self.recall(settings, &before, terms).await?,
                        None => None,
                    }
                }
            };
        }
        Ok(())
    }

    /// Takes a version back that failed on objects which the one before handles (rule P3).
    fn judge(&self, name: &Arc<str>, known: &mut Known, serving: &Arc<ActivePlugin>, settings: &Object) {
        for plugin in serving.versions() {
            let Some(probation) = &plugin.probation else { continue };
            let (Some(verdict), Some(before)) = (probation.verdict(), &probation.before) else { continue };
            if known.failed.as_ref().is_some_and(|failed| *failed.digest == *plugin.digest)
                || known.is_approved && plugin.digest == serving.digest
            {
                continue;
            }
            let message = format!(
                "{} {verdict}; {} serves on. Push a version that is mended, or put this one in force all the same: \
                 `oarlock approve {name}`",
                say::version(plugin),
                say::version(before),
            );
            warn!(plugin = &**name, digest = &*plugin.digest, message, "version rolled back");
            let failed = Refused::rolled_back(&plugin.digest, message);
            let event = say::warning(Reason::RolledBack, "Rollback", failed.message.clone());
            self.events.publish(settings, &event);
            self.metrics.plugin_rolled_back();
            known.failed = Some(failed);
            if plugin.digest == serving.digest {
                known.before = Some(Version::of(before));
            }
        }
    }
}

impl Known {
    /// Takes in what is on record of the plugin's past, at the first look.
    pub(super) fn remember(&mut self, settings: &Object) {
        if self.history.is_some() {
            return;
        }
        let recorded = say::recorded(settings);
        self.history = Some(recorded.history);
        let failed = recorded.refused.filter(|refused| refused.reason == Reason::RolledBack.as_str());
        self.failed = failed.map(|failed| Refused::rolled_back(&failed.digest, failed.message));
    }
}

impl Candidate {
    fn new(version: &Version, rollout: RolloutStrategy) -> Self {
        Self {
            version: version.clone(),
            rollout,
            since: None,
            is_proven: false,
            is_previewed: false,
            message: String::new(),
        }
    }
}

fn missing(history: &[EarlierVersion], digest: &str) -> (Reason, String) {
    let kept: Vec<_> = history.iter().map(|one| short(bare(&one.digest))).collect();
    let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
    let message = format!(
        "version {} is not kept; kept of those before are: {kept}. Push it again, or name another one",
        short(digest)
    );
    (Reason::VersionMissing, message)
}

//! Whether a watch has lost something: what it has, compared with a list of metadata.
//!
//! API servers have lost events without a word. One watch at a time is audited, so that the lists of all of them
//! do not come together; one that has lost something is listed anew.

use super::{WatchKey, WatchState, Watches, follow::Alive};
use crate::{
    object::{ObjectKey, ResourceVersion},
    observe::{cache::Doubt, client::Error},
};
use std::{collections::BTreeMap, convert::Infallible, time::Duration};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// How long a watch may take to come as far as the list: bookmarks come about once a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is missing, in which version; of an object that should be gone, the version that is still there.
type Lost = BTreeMap<ObjectKey, ResourceVersion>;

impl Watches {
    /// Audits every watch, one after another, about once in `interval`; until it is dropped.
    pub async fn audit(&self, interval: Duration) -> Infallible {
        // What another list did not bring either: an object that cannot be decoded. It is no news the next time.
        let mut hopeless: BTreeMap<WatchKey, Lost> = BTreeMap::new();
        loop {
            // Replicas and restarts spread over the last quarter.
            sleep(interval.mul_f64(0.75 + self.draw() / 4.0)).await;
            let wanted = self.wanted();
            hopeless.retain(|key, _| wanted.iter().any(|(other, _)| other == key));
            for (key, alive) in wanted {
                let lost = match self.audit_one(&key, &alive).await {
                    Ok(Some(lost)) => lost,
                    Ok(None) => continue,
                    Err(error) => {
                        debug!(error = %error, "a watch could not be audited");
                        continue;
                    }
                };
                alive.count(|counts| counts.audits += 1);
                let before = hopeless.remove(&key).unwrap_or_default();
                let news = lost.iter().filter(|(key, version)| before.get(*key) != Some(*version));
                let (count, first) = (news.clone().count(), news.map(|(key, _)| key.to_string()).next());
                if let Some(first) = first {
                    warn!(kind = %key.gvk, scope = ?key.scope, lost = count, first, "a watch has lost changes; its kind is listed again");
                    alive.count(|counts| counts.lost += count as u64);
                    self.shared.cache.doubt(&key, Doubt::Lost);
                    self.shared.doubts.notify_waiters();
                }
                if !lost.is_empty() {
                    hopeless.insert(key, lost);
                }
            }
        }
    }

    /// What a watch has lost; `None` if that cannot be told now.
    async fn audit_one(&self, key: &WatchKey, alive: &Alive) -> Result<Option<Lost>, Error> {
        let before = self.shared.cache.snapshot();
        if !before.is_synced(key) || alive.state() != WatchState::Live {
            return Ok(None);
        }
        let kind = self.shared.discovery.kind(&key.gvk).await?;
        let (mut listed, mut next) = (BTreeMap::new(), None);
        let at = loop {
            let page = self.shared.client.list_metadata(&kind, &key.scope, next.as_deref()).await?;
            listed.extend(page.objects.into_iter().map(|object| (object.key, object.version)));
            match page.next {
                Some(more) => next = Some(more),
                None => break page.version,
            }
        };
        // Mostly there is nothing to wait for: what the list has is there already.
        let lost = self.shared.cache.snapshot().lost(key, &before, &listed, &at);
        if lost.is_empty() {
            return Ok(Some(lost));
        }
        let reached = timeout(PATIENCE, async {
            loop {
                let moved = alive.moved.notified();
                let now = self.shared.cache.snapshot();
                if now.version(key).is_some_and(|reached| *reached == at || at.is_older_than(reached)) {
                    break now;
                }
                moved.await;
            }
        });
        // A watch that does not come as far is one that is silent, or has ended.
        Ok(reached.await.ok().map(|now| now.lost(key, &before, &listed, &at)))
    }
}

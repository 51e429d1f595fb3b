//! Which plugins to look at: a set, so that ten changes of one ConfigMap are one look.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Names of plugins to look at, now or later.
#[derive(Default)]
pub struct Pending {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// All of them, also those not known yet.
    all: bool,
    names: BTreeSet<Arc<str>>,
    later: BTreeSet<(Instant, Arc<str>)>,
}

impl Pending {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    /// Look at this one.
    pub fn add(&self, name: &Arc<str>) {
        self.change(|state| {
            state.names.insert(name.clone());
        });
    }

    /// Look at every plugin.
    pub fn add_all(&self) {
        self.change(|state| state.all = true);
    }

    /// Look at this one after some time; the soonest of several times counts.
    pub fn later(&self, name: &Arc<str>, after: Duration) {
        self.change(|state| {
            let due = Instant::now() + after;
            let before = state.later.iter().find(|(_, other)| other == name).cloned();
            if before.as_ref().is_none_or(|(before, _)| due < *before) {
                before.map(|before| state.later.remove(&before));
                state.later.insert((due, name.clone()));
            }
        });
    }

    /// Waits for something to look at; `None` means all plugins.
    pub async fn take(&self) -> Option<BTreeSet<Arc<str>>> {
        loop {
            let due = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                while let Some((due, _)) = state.later.first()
                    && *due <= now
                {
                    let (_, name) = state.later.pop_first().expect("looked at above");
                    state.names.insert(name);
                }
                if std::mem::take(&mut state.all) {
                    state.names.clear();
                    return None;
                }
                if !state.names.is_empty() {
                    return Some(std::mem::take(&mut state.names));
                }
                state.later.first().map(|(due, _)| *due)
            };
            match due {
                Some(due) => {
                    tokio::select! {
                        biased;
                        () = self.wake.notified() => {}
                        () = tokio::time::sleep_until(due) => {}
                    }
                }
                None => self.wake.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pending_merges_names_and_wakes_for_delayed_ones() {
        let pending = Pending::default();
        pending.add(&"a".into());
        pending.add(&"a".into());
        pending.later(&"b".into(), Duration::from_secs(5));
        assert_eq!(pending.take().await, Some(BTreeSet::from(["a".into()])));
        assert_eq!(pending.take().await, Some(BTreeSet::from(["b".into()])));
        pending.add_all();
        assert_eq!(pending.take().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn pending_keeps_the_soonest_of_several_times() {
        let pending = Pending::default();
        let start = Instant::now();
        for seconds in [20, 5, 60] {
            pending.later(&"a".into(), Duration::from_secs(seconds));
        }
        pending.take().await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        pending.later(&"b".into(), Duration::from_secs(100));
        assert_eq!(pending.take().await, Some(BTreeSet::from(["b".into()])));
    }
}

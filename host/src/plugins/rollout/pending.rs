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

    /// Look at this one after some time.
    pub fn later(&self, name: &Arc<str>, after: Duration) {
        self.change(|state| {
            state.later.insert((Instant::now() + after, name.clone()));
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
}

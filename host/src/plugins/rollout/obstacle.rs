//! What a plugin in force cannot do without and does not have: a kind that is gone, that it must not see, or that
//! fails on and on. A kind that is being listed is none: a restart must not tell anybody that nothing is known.

use super::{Known, Rollout, config_maps_watch, plugins_watch, say};
use crate::{
    manifest::Manifest,
    observe::watch::{WatchKey, WatchState},
    plugins::{ActivePlugin, Obstacle},
    report::Reason,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long one kind may fail while the API server serves others. Longer than a watch waits between two tries,
/// so that an API server that comes back is not taken for one that fails on this kind.
const PATIENCE: Duration = Duration::from_secs(40);

/// Since when watches of one plugin fail while the API server serves others.
#[derive(Default)]
pub(super) struct Failing(BTreeMap<WatchKey, Instant>);

impl Failing {
    /// Takes note of how watches are doing; how long until one of them has failed for too long.
    fn note<'a>(
        &mut self,
        states: impl IntoIterator<Item = (&'a WatchKey, &'a WatchState)>,
        api_serves: bool,
        now: Instant,
    ) -> Option<Duration> {
        let failing =
            states.into_iter().filter(|(_, state)| api_serves && matches!(state, WatchState::Failing(_)));
        let before = std::mem::take(&mut self.0);
        self.0 = failing.map(|(key, _)| (key.clone(), before.get(key).copied().unwrap_or(now))).collect();
        let left =
            self.0.values().map(|since| PATIENCE.saturating_sub(now.saturating_duration_since(*since)));
        left.filter(|left| !left.is_zero()).min()
    }

    pub(super) fn is_long(&self, key: &WatchKey, now: Instant) -> bool {
        self.0.get(key).is_some_and(|since| now.saturating_duration_since(*since) >= PATIENCE)
    }

    /// The worst of a plugin's watches: gone, then forbidden, then failing.
    fn obstacle<'a>(
        &self,
        states: impl IntoIterator<Item = (&'a WatchKey, &'a WatchState)>,
        manifest: &Manifest,
        now: Instant,
    ) -> Option<Obstacle> {
        let ranked = states.into_iter().filter_map(|(key, state)| {
            let gvk = &key.gvk;
            match state {
                WatchState::Missing(_) => Some((0, say::missing(gvk))),
                WatchState::Forbidden(why) => Some((1, say::forbidden(gvk, why, manifest))),
                WatchState::Failing(why) if self.is_long(key, now) => {
                    Some((2, (Reason::ApiUnavailable, format!("{gvk} cannot be listed: {why}"))))
                }
                WatchState::Failing(_) | WatchState::Listing | WatchState::Live => None,
            }
        });
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, obstacle)| obstacle)
    }
}

impl Rollout {
    /// Takes note of which of a plugin's watches fail, and looks again when one has failed for too long.
    pub(super) fn note_failing(&self, name: &Arc<str>, known: &mut Known) {
        let states = self.states(&known.watches);
        let own = [config_maps_watch(&self.config.namespace), plugins_watch()];
        let api_serves = own.iter().all(|key| self.watches.state(key) == Some(WatchState::Live));
        if let Some(left) = known.failing.note(borrowed(&states), api_serves, Instant::now()) {
            self.pending.later(name, left);
        }
    }

    /// What keeps a plugin with these watches from reconciling.
    pub(super) fn obstacle<'a>(
        &self,
        failing: &Failing,
        watches: impl IntoIterator<Item = &'a WatchKey>,
        manifest: &Manifest,
    ) -> Option<Obstacle> {
        failing.obstacle(borrowed(&self.states(watches)), manifest, Instant::now())
    }

    /// The version in force goes on while a new one waits: with what it needs itself.
    pub(super) fn note_obstacle(&self, failing: &Failing, serving: &ActivePlugin) {
        let obstacle = self.obstacle(failing, serving.watches(), &serving.manifest);
        let obstacle = steady(obstacle, serving.obstacle.as_ref());
        self.activate(ActivePlugin { obstacle, ..serving.clone() }, Some(serving), false);
    }

    fn states<'a>(&self, watches: impl IntoIterator<Item = &'a WatchKey>) -> Vec<(&'a WatchKey, WatchState)> {
        watches.into_iter().filter_map(|key| Some((key, self.watches.state(key)?))).collect()
    }
}

fn borrowed<'a>(
    states: &'a [(&'a WatchKey, WatchState)],
) -> impl Iterator<Item = (&'a WatchKey, &'a WatchState)> {
    states.iter().map(|(key, state)| (*key, state))
}

/// The obstacle to say: words about failures differ from try to try, and not every try is news.
pub(super) fn steady(obstacle: Option<Obstacle>, before: Option<&Obstacle>) -> Option<Obstacle> {
    match (&obstacle, before) {
        (Some((Reason::ApiUnavailable, _)), Some(before @ (Reason::ApiUnavailable, _))) => {
            Some(before.clone())
        }
        _ => obstacle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{object::Gvk, observe::client::Scope};

    fn key(kind: &str) -> WatchKey {
        WatchKey { gvk: Gvk::new("v1", kind), scope: Scope::default() }
    }

    fn manifest() -> Manifest {
        let text = r#"{"name": "p", "version": "1", "parent": {"apiVersion": "v1", "kind": "P"}}"#;
        Manifest::parse(text).unwrap()
    }

    fn failing(why: &str) -> WatchState {
        WatchState::Failing(why.to_owned())
    }

    #[test]
    fn kind_that_is_gone_is_said_before_a_forbidden_one() {
        let (gone, forbidden, live) = (key("Gone"), key("Secret"), key("Live"));
        let states = [
            (&live, WatchState::Live),
            (&forbidden, WatchState::Forbidden("no".into())),
            (&gone, WatchState::Missing("no".into())),
        ];
        let obstacle = |states| {
            Failing::default().obstacle(borrowed(states), &manifest(), Instant::now()).map(|one| one.0)
        };
        assert_eq!(obstacle(&states), Some(Reason::KindMissing));
        assert_eq!(obstacle(&states[..2]), Some(Reason::KindForbidden));
        assert_eq!(obstacle(&states[..1]), None);
        assert_eq!(obstacle(&[(&live, WatchState::Listing)]), None, "a restart tells nothing");
    }

    #[test]
    fn failing_counts_only_when_it_lasts_while_others_are_served() {
        let (key, start) = (key("Widget"), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut known = Failing::default();
        let mut look = |state: WatchState, api_serves, seconds| {
            let states = [(&key, state)];
            let left = known.note(borrowed(&states), api_serves, after(seconds)).map(|left| left.as_secs());
            let obstacle = known.obstacle(borrowed(&states), &manifest(), after(seconds));
            (left, obstacle.map(|one| one.0))
        };
        assert_eq!(look(failing("a"), true, 0), (Some(40), None));
        assert_eq!(look(failing("b"), true, 30), (Some(10), None));
        // The API server itself was away: it begins anew.
        assert_eq!(look(failing("b"), false, 35), (None, None));
        assert_eq!(look(failing("b"), true, 50), (Some(40), None));
        assert_eq!(look(failing("c"), true, 90), (None, Some(Reason::ApiUnavailable)));
        assert_eq!(look(WatchState::Live, true, 91), (None, None));
        assert_eq!(look(failing("d"), true, 95), (Some(40), None));
    }

    #[test]
    fn words_about_the_same_failure_stay() {
        let say = |reason, message: &str| (reason, message.to_owned());
        let (first, second) = (say(Reason::ApiUnavailable, "port 1"), say(Reason::ApiUnavailable, "port 2"));
        assert_eq!(steady(Some(second), Some(&first)), Some(first.clone()));
        let gone = say(Reason::KindMissing, "gone");
        assert_eq!(steady(Some(gone.clone()), Some(&first)), Some(gone));
        assert_eq!(steady(None, Some(&first)), None);
    }
}

//! The steps of one watch: list, probe, follow.

use super::{
    Counts, OnChange, OnState, WatchKey, WatchState,
    health::{Health, Outcome, State},
};
use crate::{
    object::ResourceVersion,
    observe::{
        cache::{Cache, Change, Doubt},
        client::{Client, Delivery, Error},
        discovery::{Discovery, Kind},
    },
    report::panic_text,
};
use futures::{FutureExt, StreamExt};
use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, error, info, warn};

/// How long a watch rests after a panic of its own.
const AFTER_PANIC: Duration = Duration::from_secs(30);
/// How many undecodable objects are remembered, so that each is logged once.
const NAMED: usize = 100;

/// What all watches use.
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) discovery: Arc<Discovery>,
    pub(super) cache: Arc<Cache>,
    pub(super) on_change: OnChange,
    pub(super) on_state: OnState,
    /// Has every watch look whether what it has is still believed.
    pub(super) doubts: Notify,
}

/// Whether a watch is still wanted, and how it is doing. The cache is changed under this lock, so that a watch
/// that has ended leaves nothing behind there.
pub(super) struct Alive {
    life: Mutex<Life>,
    /// Ends a wait.
    pub(super) retry: Notify,
    /// Wakes whoever waits until it has come further.
    pub(super) moved: Notify,
}

struct Life {
    wanted: bool,
    state: WatchState,
    counts: Counts,
}

impl Alive {
    pub(super) fn new() -> Self {
        let life = Life { wanted: true, state: WatchState::Listing, counts: Counts::default() };
        Self { life: Mutex::new(life), retry: Notify::new(), moved: Notify::new() }
    }

    /// Ends it; what `clean_up` does is the last that happens.
    pub(super) fn end(&self, clean_up: impl FnOnce()) {
        let mut life = self.lock();
        life.wanted = false;
        clean_up();
    }

    pub(super) fn state(&self) -> WatchState {
        self.lock().state.clone()
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Does something to the cache, unless the watch has ended.
    fn change<T: Default>(&self, change: impl FnOnce() -> T) -> T {
        let life = self.lock();
        if life.wanted { change() } else { T::default() }
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows one watch until its task is aborted.
///
/// `seed` makes its waits repeatable.
pub(super) async fn run(shared: Arc<Shared>, key: WatchKey, alive: Arc<Alive>, seed: u64) {
    loop {
        let watch = Follower {
            shared: &shared,
            key: &key,
            alive: &alive,
            health: Health::new(seed),
            named: BTreeSet::new(),
        };
        let Err(panic) = AssertUnwindSafe(watch.run()).catch_unwind().await;
        // A bug of the host. The objects of this kind stay as they are for a moment and are listed again.
        error!(kind = %key.gvk, scope = ?key.scope, panic = panic_text(&*panic), "a watch panicked");
        let said = "the watch stopped by a fault of the host; its log has the details";
        report(&shared, &key, &alive, &WatchState::Failing(said.into()));
        sleep(AFTER_PANIC).await;
    }
}

fn report(shared: &Shared, key: &WatchKey, alive: &Alive, state: &WatchState) {
    {
        let mut life = alive.lock();
        if !life.wanted || life.state == *state {
            return;
        }
        life.state = state.clone();
    }
    match state {
        WatchState::Listing | WatchState::Live => {
            info!(kind = %key.gvk, scope = ?key.scope, state = ?state, "watch");
        }
        WatchState::Missing(_) | WatchState::Forbidden(_) | WatchState::Failing(_) => {
            warn!(kind = %key.gvk, scope = ?key.scope, state = ?state, "watch");
        }
    }
    (shared.on_state)(key, state);
}

struct Follower<'a> {
    shared: &'a Shared,
    key: &'a WatchKey,
    alive: &'a Alive,
    health: Health,
    /// Undecodable objects that were logged.
    named: BTreeSet<String>,
}

impl Follower<'_> {
    async fn run(mut self) -> std::convert::Infallible {
        let mut state = State::List;
        loop {
            let outcome = self.step(state).await;
            if let Outcome::Failed(_, error) = &outcome {
                debug!(error = %error, answer = error.answer.as_str(), "watch step failed");
            }
            let sent_bookmarks = !self.health.sends_no_bookmarks();
            let next = self.health.after(outcome);
            if sent_bookmarks && self.health.sends_no_bookmarks() {
                info!(kind = %self.key.gvk, "no bookmarks come: a silent connection is noticed only when its watch should end");
            }
            if next.vanished {
                self.shared.discovery.forget(&self.key.gvk);
                let Self { shared, key, .. } = &self;
                self.alive.change(|| {
                    shared.cache.forget(key);
                    shared.cache.open(key);
                });
            }
            if let Some(state) = next.report {
                report(self.shared, self.key, self.alive, &state);
            }
            tokio::select! {
                biased;
                () = sleep(next.wait) => {}
                () = self.alive.retry.notified() => {}
            }
            state = next.state;
        }
    }

    async fn step(&mut self, state: State) -> Outcome {
        match state {
            State::List => match self.list().await {
                Ok(version) => Outcome::Listed(version),
                Err(error) => Outcome::Failed(None, error),
            },
            State::Probe(from) => match self.probe().await {
                Ok(now) if now.is_older_than(&from) => self.other_history(),
                Ok(_) => Outcome::Reachable(from),
                Err(error) => Outcome::Failed(Some(from), error),
            },
            State::Follow(from) => {
                let mut reached = from;
                match self.follow(&mut reached).await {
                    Ok(End::Closed(lasted)) => Outcome::Closed(reached, lasted),
                    Ok(End::Silent) => Outcome::Silent(reached),
                    Ok(End::OtherHistory) => self.other_history(),
                    Ok(End::Doubted) => Outcome::Doubted,
                    Err(error) => Outcome::Failed(Some(reached), error),
                }
            }
        }
    }

    /// What this watch has is of a history that is over: so is what the others have, whether they have noticed or not.
    fn other_history(&self) -> Outcome {
        if self.doubt() != Some(Doubt::OtherHistory) {
            self.tell_other_history(None);
        }
        Outcome::OtherHistory
    }

    fn tell_other_history(&self, just_listed: Option<&WatchKey>) {
        self.count(|counts| counts.other_histories += 1);
        warn!(kind = %self.key.gvk, "the cluster's history went backwards; everything is listed and planned again");
        self.shared.cache.other_history(just_listed);
        self.shared.doubts.notify_waiters();
    }

    fn doubt(&self) -> Option<Doubt> {
        self.shared.cache.snapshot().doubt(self.key)
    }

    async fn kind(&self) -> Result<Arc<Kind>, Error> {
        self.shared.discovery.kind(&self.key.gvk).await
    }

    /// Lists all pages before anything is mirrored: a part of a list is no list.
    async fn list(&mut self) -> Result<ResourceVersion, Error> {
        let kind = self.kind().await?;
        let (mut objects, mut next) = (Vec::new(), None);
        let version = loop {
            let page = self.shared.client.list(&kind, &self.key.scope, next.as_deref()).await?;
            objects.extend(page.objects);
            page.undecodable.iter().for_each(|why| self.name_undecodable(why));
            match page.next {
                Some(more) => next = Some(more),
                None => break page.version,
            }
        };
        let Self { shared, key, alive, .. } = &self;
        let (before, changes) = self.alive.change(|| {
            let before = shared.cache.snapshot();
            (Some(before), shared.cache.replace(key, objects, &version))
        });
        let doubt = before.as_ref().and_then(|before| before.doubt(key));
        let is_known = doubt == Some(Doubt::OtherHistory);
        let is_older = before
            .is_some_and(|before| before.version(key).is_some_and(|was_at| version.is_older_than(was_at)));
        self.count(|counts| counts.lists += 1);
        let is_told = !is_known && (is_older || changes.iter().any(Change::goes_backwards));
        if is_told {
            self.tell_other_history(Some(key));
        }
        // Whoever waited for the list to be believed again has to hear of its end, even where nobody saw its beginning:
        // this watch was about to list anyway when another one doubted it.
        if is_told || doubt.is_some() {
            report(self.shared, self.key, self.alive, &WatchState::Listing);
        }
        self.pass_on(&changes);
        alive.moved.notify_waiters();
        Ok(version)
    }

    async fn probe(&self) -> Result<ResourceVersion, Error> {
        let kind = self.kind().await?;
        self.shared.client.current_version(&kind, &self.key.scope).await
    }

    /// Follows one watch to its end; `reached` goes with it.
    async fn follow(&mut self, reached: &mut ResourceVersion) -> Result<End, Error> {
        let kind = self.kind().await?;
        let (seconds, silence) = self.health.patience();
        // From here on: none between the look and the wait is missed.
        let mut doubts = std::pin::pin!(self.shared.doubts.notified());
        doubts.as_mut().enable();
        if self.doubt().is_some() {
            return Ok(End::Doubted);
        }
        let items = self.shared.client.watch(&kind, &self.key.scope, reached, seconds).await?;
        let mut items = std::pin::pin!(items);
        let opened = Instant::now();
        self.health.opened();
        self.count(|counts| counts.watches += 1);
        report(self.shared, self.key, self.alive, &WatchState::Live);
        loop {
            let next = tokio::select! {
                biased;
                () = doubts.as_mut() => {
                    doubts.set(self.shared.doubts.notified());
                    doubts.as_mut().enable();
                    if self.doubt().is_some() {
                        return Ok(End::Doubted);
                    }
                    continue;
                }
                next = timeout(silence, items.next()) => next,
            };
            let item = match next {
                Ok(Some(item)) => item?,
                Ok(None) => return Ok(End::Closed(opened.elapsed())),
                Err(_) => {
                    self.count(|counts| counts.silences += 1);
                    warn!(kind = %self.key.gvk, scope = ?self.key.scope, seconds = silence.as_secs(), "a watch went silent");
                    return Ok(End::Silent);
                }
            };
            let Self { shared, key, alive, .. } = &*self;
            let (change, version) = match item {
                Delivery::Applied(object) => {
                    let version = object.version.clone();
                    (alive.change(|| shared.cache.applied(key, *object)), version)
                }
                Delivery::Deleted(object) => {
                    (alive.change(|| shared.cache.deleted(key, &object)), object.version)
                }
                Delivery::Bookmark(version) if version.is_older_than(reached) => {
                    return Ok(End::OtherHistory);
                }
                Delivery::Bookmark(version) => {
                    alive.change(|| shared.cache.reached(key, &version));
                    self.health.delivered(true);
                    (None, version)
                }
                Delivery::Undecodable(why) => {
                    self.name_undecodable(&why);
                    continue;
                }
            };
            self.health.delivered(false);
            self.alive.moved.notify_waiters();
            if let Some(change) = change {
                self.pass_on(&[change]);
            }
            // An event out of order does not take the watch back.
            if !version.is_older_than(reached) {
                *reached = version;
            }
        }
    }

    fn pass_on(&self, changes: &[Change]) {
        if !changes.is_empty() {
            (self.shared.on_change)(changes);
        }
    }

    /// An object that cannot be decoded is named once: it will come again with every list.
    fn name_undecodable(&mut self, why: &str) {
        self.count(|counts| counts.undecodable += 1);
        if self.named.len() < NAMED && self.named.insert(why.to_owned()) {
            warn!(kind = %self.key.gvk, object = why, "an object cannot be decoded and is left out");
        }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        self.alive.count(count);
    }
}

/// How a watch ended without failing.
enum End {
    Closed(Duration),
    Silent,
    OtherHistory,
    Doubted,
}

//! What may be relied on whatever the queue does: told from what was asked of it and what it gave.

use super::*;

#[derive(Default)]
pub(super) struct Promises {
    in_flight: BTreeSet<ParentRef>,
    /// Those in flight whose result does not count any more.
    forgotten: BTreeSet<ParentRef>,
    /// What must still come out; and the earliest time at which it may.
    owed: BTreeSet<ParentRef>,
    earliest: BTreeMap<ParentRef, Now>,
    not_before: BTreeMap<ParentRef, Now>,
    /// By when it is to be looked at: a result wants it, or something was added.
    latest: BTreeMap<ParentRef, Now>,
    /// What has failed and has to wait; what of it waits for somebody to mend it.
    failed: BTreeSet<ParentRef>,
    patient: BTreeSet<ParentRef>,
    /// What was added since it was taken.
    added: BTreeMap<ParentRef, BTreeSet<Trigger>>,
    /// Turns of others since a plugin with none in flight began to wait for its own.
    turns: BTreeMap<(Arc<str>, Arc<str>), u32>,
    /// Edits of a plugin since its last resync.
    edits: BTreeMap<Arc<str>, u32>,
}

impl Promises {
    pub(super) fn added(&mut self, parent: ParentRef, trigger: Trigger, now: Now) {
        if is_edited(trigger) && self.patient.contains(&parent) {
            self.not_before.remove(&parent);
            self.failed.remove(&parent);
        }
        // A changed input is looked at as soon as it may be; so is anything of a key that has not failed.
        let is_heeded = is_input(trigger) || !self.failed.contains(&parent);
        if is_heeded && !self.in_flight.contains(&parent) {
            self.earliest.remove(&parent);
            let soonest = self.not_before.get(&parent).copied().unwrap_or_default().max(now);
            self.latest.entry(parent.clone()).and_modify(|at| *at = soonest.min(*at)).or_insert(soonest);
        }
        self.added.entry(parent.clone()).or_default().insert(trigger);
        self.owed.insert(parent);
    }

    fn was_added(&self, parent: &ParentRef, ask: fn(Trigger) -> bool) -> bool {
        self.added.get(parent).into_iter().flatten().copied().any(ask)
    }

    /// Nothing is lost, nothing is kept that nobody asked for, and whatever was to be looked at by now is due.
    pub(super) fn are_kept(&self, queue: &Queue, now: Now) {
        for parent in shorts().map(long) {
            let waits = queue.look(&parent).map(|look| look.waits);
            assert_eq!(waits == Some(Waits::Result), self.in_flight.contains(&parent), "{parent:?}");
            let is_expected = self.owed.contains(&parent) || self.in_flight.contains(&parent);
            assert_eq!(waits.is_some(), is_expected, "{parent:?}");
            let Some(at) = self.latest.get(&parent).filter(|at| **at <= now) else { continue };
            let is_due = match waits {
                Some(Waits::Worker { .. } | Waits::Result) => true,
                Some(Waits::Requeue { until } | Waits::BackOff { until }) => until <= now,
                None => false,
            };
            assert!(is_due, "{parent:?} was to be looked at at {at:?}, it is {now:?}: {waits:?}");
        }
    }

    /// `waiting`: the depth before.
    pub(super) fn took(
        &mut self,
        taken: Option<&Request>,
        waiting: &BTreeMap<Arc<str>, (usize, usize)>,
        now: Now,
    ) {
        let Some(Request { parent, since, triggers, .. }) = taken else {
            assert!(waiting.values().all(|(due, _)| *due == 0), "nothing is taken of {waiting:?}");
            return;
        };
        assert!(self.owed.remove(parent), "nobody asked for {parent:?}");
        self.took_in_turn(&parent.plugin, waiting);
        self.edits_go_first(parent, triggers);
        for bound in [&mut self.earliest, &mut self.not_before] {
            let bound = bound.remove(parent).unwrap_or_default();
            assert!((bound..=now).contains(since), "{parent:?} since {since:?}, not before {bound:?}");
        }
        let added = self.added.remove(parent).unwrap_or_default();
        assert!(triggers.is_superset(&added), "{parent:?} has {triggers:?} of {added:?}");
        self.latest.remove(parent);
        self.patient.remove(parent);
        self.failed.remove(parent);
        assert!(self.in_flight.insert(parent.clone()), "{parent:?} twice in flight");
    }

    fn took_in_turn(&mut self, plugin: &Arc<str>, waiting: &BTreeMap<Arc<str>, (usize, usize)>) {
        let flying = |plugin: &str| self.in_flight.iter().filter(|key| *key.plugin == *plugin).count();
        for (other, _) in waiting.iter().filter(|(other, (due, _))| *due > 0 && *other != plugin) {
            assert!(flying(plugin) <= flying(other), "{plugin} holds more than {other}");
            if flying(other) == 0 {
                let turns = self.turns.entry((other.clone(), plugin.clone())).or_default();
                *turns += 1;
                assert!(*turns <= 1, "{other} waits for a second turn of {plugin}");
            }
        }
        self.turns.retain(|(waits, _), _| waits != plugin);
    }

    /// A resync does not go before an edit that may go, unless so many have passed.
    fn edits_go_first(&mut self, parent: &ParentRef, triggers: &BTreeSet<Trigger>) {
        let is_waiting = |other: &&ParentRef| {
            other.plugin == parent.plugin && !self.in_flight.contains(*other) && !self.failed.contains(*other)
        };
        let is_edit_waiting =
            self.added.keys().filter(is_waiting).any(|other| self.was_added(other, is_edit));
        let edits = self.edits.entry(parent.plugin.clone()).or_default();
        if triggers.iter().copied().any(is_edit) {
            *edits += 1;
            return;
        }
        assert!(*edits >= EDITS_PER_RESYNC || !is_edit_waiting, "{parent:?} goes before an edit");
        *edits = 0;
    }

    pub(super) fn finished(
        &mut self,
        parent: &ParentRef,
        outcome: Outcome,
        look_again: Option<Duration>,
        now: Now,
    ) {
        self.in_flight.remove(parent);
        let is_forgotten = self.forgotten.remove(parent);
        match outcome {
            Outcome::Retry { fault, not_before } if !is_forgotten => {
                let not_before = now + not_before.unwrap_or_default();
                let is_mended = fault == Fault::Plugin && self.was_added(parent, is_edited);
                let is_changed = self.was_added(parent, is_input);
                if fault == Fault::Plugin {
                    self.patient.insert(parent.clone());
                }
                if !is_mended {
                    self.failed.insert(parent.clone());
                    self.not_before.insert(parent.clone(), not_before);
                }
                if !is_changed {
                    let soonest = look_again.unwrap_or(FIRST_BACKOFF).min(FIRST_BACKOFF * 3 / 4);
                    self.earliest.insert(parent.clone(), now + soonest);
                }
                let back_off = now + look_again.unwrap_or(LONGEST_BACKOFF).min(LONGEST_BACKOFF);
                let latest = match (is_mended, is_changed) {
                    (true, _) => now,
                    (false, true) => not_before,
                    (false, false) => back_off.max(not_before),
                };
                self.latest.insert(parent.clone(), latest);
                self.owed.insert(parent.clone());
            }
            _ if self.added.contains_key(parent) => drop(self.latest.insert(parent.clone(), now)),
            _ => {
                if let Some(after) = look_again.filter(|_| !is_forgotten) {
                    self.latest.insert(parent.clone(), now + after);
                    self.earliest.insert(parent.clone(), now + after);
                    self.owed.insert(parent.clone());
                }
            }
        }
    }

    pub(super) fn forgot(&mut self, plugin: &str) {
        let is_other = |parent: &ParentRef| *parent.plugin != *plugin;
        self.forgotten.extend(self.in_flight.iter().filter(|parent| !is_other(parent)).cloned());
        for bounds in [&mut self.earliest, &mut self.not_before, &mut self.latest] {
            bounds.retain(|parent, _| is_other(parent));
        }
        for keys in [&mut self.owed, &mut self.patient, &mut self.failed] {
            keys.retain(is_other);
        }
        self.added.retain(|parent, _| is_other(parent));
        self.turns.retain(|(waits, _), _| **waits != *plugin);
    }

    pub(super) fn owe_nothing(&self) {
        assert!(self.owed.is_empty(), "never taken: {:?}", self.owed);
    }
}

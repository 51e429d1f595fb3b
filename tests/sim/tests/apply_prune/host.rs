//! The host, as far as it decides what is written: its memory, and one pass over the parent.
//!
//! What is a public function of the host is called. The rest says the same in few words, and names where.

use crate::{
    model::{Flaw, Setup},
    world::{Apply, CHILDREN, Child, Parent, Said, Uid, World, bit},
};
use oarlock::{
    act::apply::{Applied, Error},
    decide::finalizer::{self, Phase},
    object::{Gvk, Object, ObjectKey},
};
use serde_json::json;
use std::sync::LazyLock;

const PLUGIN: &str = "web";

/// What a crash loses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    /// The mirrors of `observe::cache`.
    pub(crate) parent: Option<Parent>,
    pub(crate) children: [Option<Child>; 2],
    /// The kinds recorded in the `Plugin`, as its mirror has it.
    pub(crate) recorded: u8,
    /// The kinds of the version that is in force.
    pub(crate) active: Option<u8>,
    /// The kinds that are watched.
    pub(crate) watched: u8,
    /// `reconcile::doubt`: children, and as the third bit the parent.
    pub(crate) doubts: u8,
    /// Whether the queue has the parent.
    pub(crate) is_due: bool,
    pub(crate) pass: Option<Pass>,
}

/// One pass: what was decided when it began, and is not yet done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact of a pass, true or not")]
pub(crate) struct Pass {
    /// As the snapshot has it.
    pub(crate) parent: Parent,
    pub(crate) phase: Step,
    pub(crate) plan: u8,
    /// What is to be applied.
    pub(crate) applies: [Option<Apply>; 2],
    /// What the snapshot has that is ours and not planned.
    pub(crate) prunes: [Option<Uid>; 2],
    /// Whether the finalizer is still to be added, or removed.
    pub(crate) is_bound: bool,
    /// A write failed: it is tried again.
    pub(crate) is_failed: bool,
    /// It was the apply of a child.
    pub(crate) is_unapplied: bool,
    /// A child is not ours: that is told, and tried again.
    pub(crate) is_refused: bool,
    /// A child is on its way out.
    pub(crate) is_awaited: bool,
    /// No watch will tell when it has gone: it is looked for again.
    pub(crate) is_unseen: bool,
    /// For the properties: whether the snapshot has all that the host had written before.
    pub(crate) is_fresh: bool,
    /// For the properties: which children have been in place, as far as the snapshot tells or since.
    pub(crate) placed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    AddFinalizer,
    Reconcile,
    Finalize,
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    RecordKinds,
    AddFinalizer,
    Apply(usize),
    Prune(usize),
    Status,
    RemoveFinalizer,
}

/// `act::apply::decision::of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Nothing,
    Await,
    Refuse,
    Apply,
}

pub(crate) fn decide(live: Option<Child>, parent: Uid) -> Decision {
    let Some(live) = live else { return Decision::Apply };
    let is_ours = match live.owner {
        Some(owner) => owner == parent,
        None => live.label == Some(parent) && live.is_ours,
    };
    match (is_ours, live.is_terminating, live.is_in_place(parent)) {
        (false, ..) => Decision::Refuse,
        (true, true, _) => Decision::Await,
        (true, false, true) => Decision::Nothing,
        (true, false, false) => Decision::Apply,
    }
}

/// `act::prune::is_provably_ours`.
pub(crate) fn is_provably_ours(child: Child, parent: Uid) -> bool {
    child.label == Some(parent) && child.owner == Some(parent)
}

/// What a watch of children selects.
pub(crate) fn labelled(child: Option<Child>) -> Option<Child> {
    child.filter(|child| child.label.is_some())
}

impl Host {
    /// A process that has just been started.
    pub(crate) fn start(world: &World) -> Self {
        Self {
            parent: None,
            children: [None; 2],
            recorded: world.recorded,
            active: None,
            watched: 0,
            doubts: 0,
            is_due: false,
            pass: None,
        }
    }

    /// `plugins::rollout::serve`: whether the kinds must be recorded before the version comes into force.
    pub(crate) fn must_record(&self, declared: u8, setup: &Setup) -> bool {
        let is_recorded = declared & !self.recorded == 0;
        let may_wait = setup.flaw == Some(Flaw::RecordLate) && self.active.is_none();
        !is_recorded && !may_wait
    }

    /// The version that is declared comes into force: what is new is listed, and the parent planned.
    pub(crate) fn activate(&mut self, world: &World, setup: &Setup) {
        let watched = self.recorded | world.declared;
        let is_start = self.active.is_none() && !(setup.flaw == Some(Flaw::ListOld) && self.watched != 0);
        if is_start {
            self.parent = world.parent;
        }
        for child in CHILDREN {
            if watched & !self.watched & bit(child) != 0 {
                self.children[child] = labelled(world.children[child]);
            }
        }
        (self.active, self.watched, self.is_due) = (Some(world.declared), watched, true);
    }

    /// `reconcile::pass` up to its first write; `None` if there is nothing to do, or to look at.
    pub(crate) fn begin(&mut self, world: &World, setup: &Setup) -> Option<Pass> {
        self.is_due = false;
        self.settle_doubts(world, setup);
        let parent = self.parent?;
        let phase = match phase(parent, setup.finalizes) {
            Phase::Gone => return None,
            Phase::Finalize => Step::Finalize,
            Phase::Reconcile { add_finalizer: true } => Step::AddFinalizer,
            Phase::Reconcile { add_finalizer: false } => Step::Reconcile,
        };
        let mut pass = Pass {
            parent,
            phase,
            plan: if phase == Step::Reconcile { parent.spec & self.active? } else { 0 },
            applies: [None; 2],
            prunes: [None; 2],
            is_bound: phase != Step::Reconcile,
            is_failed: false,
            is_unapplied: false,
            is_refused: false,
            is_awaited: false,
            is_unseen: false,
            is_fresh: false,
            placed: 0,
        };
        for child in CHILDREN.into_iter().filter(|_| phase != Step::AddFinalizer) {
            let mirrored = self.children[child];
            if pass.plan & bit(child) == 0 {
                let going =
                    mirrored.filter(|child| is_provably_ours(*child, parent.uid) && !child.is_terminating);
                pass.prunes[child] = going.map(|child| child.uid);
                continue;
            }
            // What is not mirrored is looked for: `act::apply::change::look`.
            let live = mirrored.or(world.children[child]);
            let decision = match decide(live, parent.uid) {
                Decision::Refuse if setup.flaw == Some(Flaw::TakeAll) => Decision::Apply,
                decision => decision,
            };
            match decision {
                Decision::Nothing => pass.placed |= bit(child),
                Decision::Await => {
                    pass.is_awaited = true;
                    pass.is_unseen |= mirrored.is_none() && setup.flaw != Some(Flaw::AwaitUnseen);
                }
                Decision::Refuse => pass.is_refused = true,
                Decision::Apply => {
                    let live = live.map(|live| live.uid);
                    let uid = live.filter(|_| setup.flaw != Some(Flaw::ApplyWithoutUid));
                    pass.applies[child] = Some(Apply { live, uid });
                }
            }
        }
        Some(pass)
    }

    /// `reconcile::doubt::settle_doubts`: what is not there any more changes nothing.
    fn settle_doubts(&mut self, world: &World, setup: &Setup) {
        let doubts = std::mem::take(&mut self.doubts);
        if setup.flaw == Some(Flaw::IgnoreDoubt) {
            return;
        }
        for child in CHILDREN.into_iter().filter(|child| doubts & bit(*child) != 0) {
            if world.children[child].is_some() {
                self.children[child] = labelled(world.children[child]);
            }
        }
        if doubts & bit(2) != 0 && world.parent.is_some() {
            self.parent = world.parent;
        }
    }

    /// The writes that may come next; none: the pass is over.
    pub(crate) fn writes(&self, setup: &Setup) -> Vec<Write> {
        let Some(pass) = &self.pass else { return Vec::new() };
        let applies =
            || CHILDREN.into_iter().filter(|child| pass.applies[*child].is_some()).map(Write::Apply);
        let prunes = || CHILDREN.into_iter().filter(|child| pass.prunes[*child].is_some()).map(Write::Prune);
        let is_applied = applies().next().is_none();
        let is_bound = pass.is_bound && !pass.is_failed;
        if pass.phase == Step::AddFinalizer {
            return is_bound.then_some(Write::AddFinalizer).into_iter().collect();
        }
        let mut writes: Vec<_> = applies().collect();
        if setup.flaw == Some(Flaw::PruneEarly) || is_applied && pass.is_complete() {
            writes.extend(prunes());
        }
        if is_bound && (writes.is_empty() || setup.flaw == Some(Flaw::ReleaseEarly)) {
            writes.push(Write::RemoveFinalizer);
        }
        let is_said = self.parent.is_none_or(|parent| parent.said == Some(pass.said()));
        if writes.is_empty() && pass.phase == Step::Reconcile && !pass.is_failed && !is_said {
            writes.push(Write::Status);
        }
        writes
    }
}

impl Pass {
    pub(crate) fn said(&self) -> Said {
        Said { plan: self.plan, is_ready: !self.is_refused && !self.is_awaited }
    }

    /// Whether it may prune.
    fn is_complete(&self) -> bool {
        let key = || ObjectKey { gvk: Gvk::new("v1", "ConfigMap"), namespace: None, name: "child".into() };
        let is_failed = self.is_unapplied || self.is_refused;
        let failed = is_failed.then(|| (key(), Error::NotOwned { child: key(), owner: String::new() }));
        let applied = Applied {
            awaited: self.is_awaited.then(key).into_iter().collect(),
            failed: failed.into_iter().collect(),
            ..Applied::default()
        };
        applied.is_complete()
    }
}

/// The real parents, by whether they are being deleted and whether they carry the finalizer.
static PARENTS: LazyLock<[[Object; 2]; 2]> = LazyLock::new(|| {
    [false, true].map(|is_terminating| {
        [false, true].map(|has_finalizer| {
            let mut object = json!({"metadata": {"name": "w", "uid": "u", "resourceVersion": "1"}});
            if is_terminating {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            if has_finalizer {
                object["metadata"]["finalizers"] = json!([finalizer::name(PLUGIN)]);
            }
            Object::decode(&Gvk::new("v1", "Widget"), &object.to_string()).unwrap()
        })
    })
});

fn phase(parent: Parent, finalizes: bool) -> Phase {
    let object = &PARENTS[usize::from(parent.is_terminating)][usize::from(parent.has_finalizer)];
    finalizer::phase(object, PLUGIN, finalizes)
}

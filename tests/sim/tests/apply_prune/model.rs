//! What may happen next, and what comes of it.

use crate::{
    check,
    host::{Host, Pass, Write, labelled},
    world::{CHILDREN, Child, Uid, World, bit},
};
use stateright::{Model, Property};

/// What is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Whether the plugin finalizes; else the garbage collector takes the children.
    pub(crate) finalizes: bool,
    /// What the host does wrong.
    pub(crate) flaw: Option<Flaw>,
    /// How often what may happen.
    pub(crate) budget: Budget,
    /// The kinds that the first version declares.
    pub(crate) declared: u8,
    /// How many objects of one name there may have been.
    pub(crate) uids: Uid,
    /// Whether what others create could be merged with what is planned, without a conflict.
    pub(crate) agrees: bool,
}

/// What a host could do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Prune does not wait until all of the plan is in place.
    PruneEarly,
    /// The DELETE of a child does not carry the uid.
    DeleteWithoutUid,
    /// The apply of a child that exists does not carry the uid.
    ApplyWithoutUid,
    /// A version is in force before its kinds are recorded.
    RecordLate,
    /// What a write of unknown outcome was about is not read anew.
    IgnoreDoubt,
    /// A start believes a list as old as what the host had before.
    ListOld,
    /// The finalizer goes before the children.
    ReleaseEarly,
    /// A finalizer is changed whatever has happened to the parent.
    ReleaseAny,
    /// What exists and is not ours is taken.
    TakeAll,
    /// A child that no watch shows, and that is on its way out, is not looked for again.
    AwaitUnseen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) crashes: u8,
    pub(crate) lost_answers: u8,
    pub(crate) edits: u8,
    /// Changes of the plan: of what the parent asks for, or of the plugin's version.
    pub(crate) changes: u8,
    /// Deletions of the parent.
    pub(crate) deletions: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) host: Host,
    pub(crate) left: Budget,
    /// Children, and as the third bit the parent, of which the mirror lacks an own write.
    pub(crate) unseen: u8,
    /// The properties that were violated by a write.
    pub(crate) broken: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The plugin's version comes into force.
    Activate,
    /// A worker takes the parent: snapshot, plan, decisions.
    Begin,
    Write(Write, Answer),
    /// The process is killed, and started anew.
    Crash,
    /// A watch has caught up.
    DeliverChild(usize),
    DeliverParent,
    DeliverPlugin,
    /// Whatever held a child that is being deleted lets it go.
    Gone(usize),
    /// The garbage collector deletes a child without parent.
    Collect(usize),
    Edit(usize, Edit),
    /// The parent asks for a child, or no longer.
    ChangeSpec(usize),
    /// A version of the plugin that declares the second kind, or no longer.
    ChangeVersion,
    DeleteParent,
    RecreateParent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Heard,
    /// It was done, and nobody was told.
    LostAfter,
    /// It was never done, and nobody was told.
    LostBefore,
}

/// What somebody else does to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Content,
    Label,
    Owner,
    Delete,
    Create,
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut world =
            World { parent: None, children: [None; 2], recorded: 0, declared: self.declared, uids: [0; 3] };
        world.create_parent();
        let host = Host::start(&world);
        vec![State { world, host, left: self.budget, unseen: 0, broken: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { world, left, .. } = state;
        // What comes after a violation says nothing.
        if state.broken != 0 {
            return;
        }
        actions.extend(state.own_actions(self));
        if left.lost_answers > 0 {
            let writes: Vec<_> = actions.iter().filter_map(|action| action.write()).collect();
            for answer in [Answer::LostAfter, Answer::LostBefore] {
                actions.extend(writes.iter().map(|write| Action::Write(*write, answer)));
            }
        }
        if left.crashes > 0 {
            actions.push(Action::Crash);
        }
        if left.edits > 0 {
            for child in CHILDREN {
                let edits: &[_] = match &world.children[child] {
                    Some(_) => &[Edit::Content, Edit::Label, Edit::Owner, Edit::Delete],
                    None => &[Edit::Create],
                };
                actions.extend(edits.iter().map(|edit| Action::Edit(child, *edit)));
            }
        }
        if left.changes > 0 {
            actions.push(Action::ChangeVersion);
            actions.extend(CHILDREN.into_iter().filter(|_| world.parent.is_some()).map(Action::ChangeSpec));
        }
        match &world.parent {
            Some(parent) if !parent.is_terminating && left.deletions > 0 => {
                actions.push(Action::DeleteParent);
            }
            None => actions.push(Action::RecreateParent),
            Some(_) => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Activate => state.activate(self),
            Action::Begin => state.host.pass = state.begun(self),
            Action::Write(write, answer) => state.write(write, answer, self),
            Action::Crash => {
                state.left.crashes -= 1;
                let before = std::mem::replace(&mut state.host, Host::start(&last.world));
                if self.flaw == Some(Flaw::ListOld) {
                    (state.host.parent, state.host.children) = (before.parent, before.children);
                    state.host.watched = before.watched;
                }
            }
            Action::DeliverChild(child) => {
                state.host.children[child] = labelled(state.world.children[child]);
                state.seen(child);
            }
            Action::DeliverParent => {
                state.host.parent = state.world.parent;
                state.seen(2);
            }
            Action::DeliverPlugin => state.host.recorded = state.world.recorded,
            Action::Gone(child) | Action::Collect(child) => state.world.children[child] = None,
            Action::Edit(child, edit) => state.edit(child, edit, self),
            Action::ChangeSpec(child) => {
                state.left.changes -= 1;
                state.world.parent.as_mut()?.spec ^= bit(child);
            }
            Action::ChangeVersion => {
                state.left.changes -= 1;
                state.world.declared ^= bit(1);
            }
            Action::DeleteParent => {
                state.left.deletions -= 1;
                state.world.change_parent(None, |parent| parent.is_terminating = true).ok()?;
            }
            Action::RecreateParent => state.world.create_parent(),
        }
        state.go_on(self);
        (state != *last).then_some(state)
    }

    /// A mirror that never hears of the parent's end would have children made and collected for ever.
    fn within_boundary(&self, state: &State) -> bool {
        state.world.uids.iter().all(|uid| *uid <= self.uids)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        check::properties(self.budget)
    }
}

impl Action {
    fn write(self) -> Option<Write> {
        match self {
            Self::Write(write, _) => Some(write),
            _ => None,
        }
    }
}

impl State {
    /// What happens sooner or later without anybody's doing: by the host, its watches, and the API server.
    pub(crate) fn own_actions(&self, setup: &Setup) -> Vec<Action> {
        let Self { world, host, .. } = self;
        let heard = |write| Action::Write(write, Answer::Heard);
        let mut actions: Vec<_> = host.writes(setup).into_iter().map(heard).collect();
        let is_active = host.active == Some(world.declared);
        if host.must_record(world.declared, setup) {
            actions.push(heard(Write::RecordKinds));
        } else if !is_active {
            actions.push(Action::Activate);
        }
        if host.pass.is_none() && host.is_due && host.active.is_some() {
            actions.push(Action::Begin);
        }
        for child in CHILDREN {
            let is_watched = host.active.is_some() && host.watched & bit(child) != 0;
            if is_watched && host.children[child] != labelled(world.children[child]) {
                actions.push(Action::DeliverChild(child));
            }
            if world.children[child].is_some_and(|child| child.is_terminating) {
                actions.push(Action::Gone(child));
            } else if world.is_orphan(child) {
                actions.push(Action::Collect(child));
            }
        }
        if host.active.is_some() && host.parent != world.parent {
            actions.push(Action::DeliverParent);
        }
        if host.recorded != world.recorded {
            actions.push(Action::DeliverPlugin);
        }
        actions
    }

    /// The pass that would begin now.
    fn begun(&mut self, setup: &Setup) -> Option<Pass> {
        if setup.flaw != Some(Flaw::IgnoreDoubt) {
            self.unseen &= !self.host.doubts;
        }
        let mut pass = self.host.begin(&self.world, setup)?;
        pass.is_fresh = self.unseen == 0;
        Some(pass)
    }

    /// Whether a pass that began now would write anything.
    pub(crate) fn would_write(&self, setup: &Setup) -> bool {
        let mut state = self.clone();
        state.host.pass = state.begun(setup);
        !state.host.writes(setup).is_empty()
    }

    /// Whether the host has crashed, and is not yet at work again.
    pub(crate) fn is_starting(&self, setup: &Setup) -> bool {
        self.left.crashes < setup.budget.crashes && self.host.active.is_none()
    }

    /// The mirror has it as it is.
    pub(crate) fn seen(&mut self, what: usize) {
        self.host.is_due = true;
        self.unseen &= !bit(what);
    }

    fn activate(&mut self, setup: &Setup) {
        let (is_start, was_watched) = (self.host.active.is_none(), self.host.watched);
        self.host.activate(&self.world, setup);
        self.unseen &= !(self.host.watched & !was_watched);
        if is_start && was_watched == 0 {
            self.unseen = 0;
        }
    }

    fn edit(&mut self, child: usize, edit: Edit, setup: &Setup) {
        self.left.edits -= 1;
        if edit == Edit::Create {
            let made = self.world.fresh(child);
            self.world.children[child] = Some(Child { is_drifted: !setup.agrees, ..made });
            return;
        }
        let Some(present) = &mut self.world.children[child] else { return };
        match edit {
            Edit::Content => present.is_drifted = true,
            Edit::Label => present.label = None,
            Edit::Owner => present.owner = None,
            Edit::Delete | Edit::Create => present.is_terminating = true,
        }
    }

    /// A pass without writes left is over; and what has been in place meanwhile is noted.
    fn go_on(&mut self, setup: &Setup) {
        let over = self.host.writes(setup).is_empty();
        let Some(pass) = &mut self.host.pass else { return };
        for child in CHILDREN {
            if self.world.children[child].is_some_and(|child| child.is_in_place(pass.parent.uid)) {
                pass.placed |= bit(child);
            }
        }
        if over {
            self.host.is_due |= pass.is_failed || pass.is_refused || pass.is_unseen;
            self.host.pass = None;
        }
    }
}

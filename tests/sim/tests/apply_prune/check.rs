//! The properties.
//!
//! S2, S3, S4, S6 and D1 are about one write each, which breaks them or not. S5 is about every state. L1 and L2 are
//! about every state at rest: nothing happens any more unless somebody does something. That a pass repeats itself
//! for ever, and writes each time, is not looked for.

use crate::{
    host::{Decision, Write, decide, is_provably_ours},
    model::{Action, Budget, Setup, State},
    world::{CHILDREN, Said, World, bit},
};
use stateright::Property;

/// What a write may break, by its bit in [`State::broken`].
const OF_WRITES: [&str; 5] = [
    "S2 fresh destruction",
    "S3 no resurrection",
    "S4 prune after complete",
    "S6 others untouched",
    "D1 finalizer outlives children",
];

pub(crate) fn properties(budget: Budget) -> Vec<Property<Setup>> {
    let mut properties = vec![
        Property::always(OF_WRITES[0], |_, state: &State| state.broken & 1 == 0),
        Property::always(OF_WRITES[1], |_, state: &State| state.broken & 1 << 1 == 0),
        Property::always(OF_WRITES[2], |_, state: &State| state.broken & 1 << 2 == 0),
        Property::always(OF_WRITES[3], |_, state: &State| state.broken & 1 << 3 == 0),
        Property::always(OF_WRITES[4], |_, state: &State| state.broken & 1 << 4 == 0),
        Property::always("S5 inventory covers world", |_, state: &State| is_covered(&state.world)),
        Property::always("L1 matches the plan", |setup: &Setup, state: &State| {
            !is_at_rest(state, setup) || is_in_place(state, setup)
        }),
        Property::always("L2 what is deleted goes", |setup: &Setup, state: &State| {
            !is_at_rest(state, setup) || is_gone(&state.world)
        }),
        // Without these the others could hold of next to nothing.
        Property::sometimes("at rest after every fault", |setup: &Setup, state: &State| {
            let is_used_up =
                state.left == Budget { crashes: 0, lost_answers: 0, edits: 0, changes: 0, deletions: 0 };
            is_used_up && is_at_rest(state, setup) && state.world.children.iter().any(Option::is_some)
        }),
    ];
    if budget.changes > 0 {
        properties.push(Property::sometimes("a child is pruned", |setup: &Setup, state: &State| {
            let is_going = state.world.children.iter().flatten().any(|child| child.is_terminating);
            is_going
                && state.left.edits == setup.budget.edits
                && state.left.deletions == setup.budget.deletions
        }));
    }
    if budget.crashes > 0 {
        properties.push(Property::sometimes(
            "a crash between record and first apply",
            |setup: &Setup, state: &State| {
                let is_recorded = state.world.recorded != 0 && state.world.uids[..2] == [0; 2];
                is_recorded && state.is_starting(setup)
            },
        ));
    }
    if budget.crashes > 0 && budget.changes > 0 {
        properties.push(Property::sometimes(
            "a crash between apply and prune",
            |setup: &Setup, state: &State| {
                let is_left = state.world.children[1].is_some() && state.world.declared & bit(1) == 0;
                is_left && state.is_starting(setup)
            },
        ));
    }
    if budget.deletions > 0 {
        properties.push(Property::sometimes("a pass about an earlier parent", |_, state: &State| {
            let (Some(pass), Some(parent)) = (&state.host.pass, &state.world.parent) else { return false };
            pass.parent.uid != parent.uid
        }));
    }
    properties
}

/// What a write has broken that was made.
pub(crate) fn broken(before: &State, after: &World, write: Write) -> u8 {
    let Some(pass) = &before.host.pass else { return 0 };
    let had = |child: usize| before.world.children[child];
    let is_destructive = matches!(write, Write::Prune(_) | Write::RemoveFinalizer);
    // Decided on a moment that has all that the host had written, and about this parent. Deletes do not count: the
    // second one of a uid does no harm.
    let is_stale = is_destructive && !pass.is_fresh
        || write == Write::RemoveFinalizer
            && before.world.parent.map(|parent| parent.uid) != Some(pass.parent.uid);
    // Made by a plan that knew the earlier one as living.
    let is_resurrected = matches!(write, Write::Apply(child)
        if had(child).is_none() && pass.applies[child].is_some_and(|apply| apply.live.is_some()));
    let is_early = matches!(write, Write::Prune(_)) && pass.plan & !pass.placed != 0;
    let is_others = match write {
        Write::Apply(child) | Write::Prune(child) => {
            had(child).is_some_and(|had| !had.is_ours) && had(child) != after.children[child]
        }
        _ => false,
    };
    let is_left = |child: usize| {
        had(child).is_some_and(|child| is_provably_ours(child, pass.parent.uid) && !child.is_terminating)
    };
    let is_deserted = write == Write::RemoveFinalizer && CHILDREN.into_iter().any(is_left);
    let all = [is_stale, is_resurrected, is_early, is_others, is_deserted];
    all.into_iter().enumerate().map(|(index, is_broken)| u8::from(is_broken) << index).sum()
}

/// Whether what is ours is of a recorded kind.
fn is_covered(world: &World) -> bool {
    let is_claimed = |child: usize| {
        world.children[child]
            .is_some_and(|child| child.is_ours && (child.label.is_some() || child.owner.is_some()))
    };
    CHILDREN.into_iter().all(|child| !is_claimed(child) || world.recorded & bit(child) != 0)
}

/// Whether nothing happens any more by itself; a pass that is due would find nothing to write.
pub(crate) fn is_at_rest(state: &State, setup: &Setup) -> bool {
    match state.own_actions(setup)[..] {
        [] => true,
        [Action::Begin] => !state.would_write(setup),
        _ => false,
    }
}

/// Whether all is as planned; or, where others are in the way, whether that is told.
fn is_in_place(state: &State, setup: &Setup) -> bool {
    let World { parent, children, declared, .. } = &state.world;
    let Some(parent) = parent.filter(|parent| !parent.is_terminating) else { return true };
    let plan = parent.spec & declared;
    let planned = || CHILDREN.into_iter().filter(|child| plan & bit(*child) != 0);
    let of = |child: usize| decide(children[child], parent.uid);
    let is_refused = planned().any(|child| of(child) == Decision::Refuse);
    let are_there = planned().all(|child| matches!(of(child), Decision::Nothing | Decision::Refuse));
    // What somebody has taken label or owner off is not provably ours, and stays.
    let is_ours = |child: usize| children[child].is_some_and(|child| is_provably_ours(child, parent.uid));
    let is_pruned = CHILDREN.into_iter().all(|child| plan & bit(child) != 0 || !is_ours(child));
    let said = Said { plan, is_ready: !is_refused };
    are_there
        && (is_pruned || is_refused)
        && parent.said == Some(said)
        && parent.has_finalizer == setup.finalizes
}

/// Whether no parent waits to go, and no child is left of one that has gone; but for what others took off it.
fn is_gone(world: &World) -> bool {
    let is_left = |child: usize| {
        let child = world.children[child];
        child.is_some_and(|child| {
            child.is_ours && child.owner.is_some_and(|owner| world.parent.is_none_or(|p| p.uid != owner))
        })
    };
    !world.parent.is_some_and(|parent| parent.is_terminating) && !CHILDREN.into_iter().any(is_left)
}

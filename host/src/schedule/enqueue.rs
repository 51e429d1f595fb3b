//! Turns one change into the requests it should trigger, with a reason each.
//!
//! In: a change, the plugins' subscriptions, the read index. Out: requests, possibly none.
//! Never: I/O, clocks, wasm.

#[cfg(test)]
mod tests;

use crate::{
    act::fields,
    object::{Gvk, LABEL_OWNED_BY, Object, ObjectKey},
    observe::{
        cache::Change,
        reads::{Memos, ParentRef},
        watch::WatchKey,
    },
    report::Trigger,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Which plugin reconciles the objects of a watch, and whose children are in it.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    /// Watches of parents: the plugins whose parents are in it.
    pub parents: BTreeMap<WatchKey, Vec<Arc<str>>>,
    /// Watches of children: the plugins whose children are in it, each with its parent kind's watch and whether
    /// that kind is namespaced.
    pub children: BTreeMap<WatchKey, Vec<(Arc<str>, WatchKey, bool)>>,
    /// Watches of objects of which plugins own fields: those plugins, each with its parent kind.
    pub fields: BTreeMap<WatchKey, Vec<(Arc<str>, Gvk)>>,
}

/// The requests that follow from a change. A child's parent is found by the child's controller owner
/// reference and `oarlock.dev/owned-by`. A status that the host wrote is news only to a guest that looked at it. What
/// comes with a first list is no edit, and must not stand before one.
pub fn requests(change: &Change, subscriptions: &Subscriptions, memos: &Memos) -> Vec<(ParentRef, Trigger)> {
    let (before, after) = (change.before.as_deref(), change.after.as_deref());
    let Some(trigger) = of_parent(before, after) else { return Vec::new() };
    let mut requests = Vec::new();
    if let (Some(plugins), Some(object)) = (subscriptions.parents.get(&change.watch), after.or(before)) {
        let parent = |plugin: &Arc<str>| ParentRef { plugin: Arc::clone(plugin), parent: object.key.clone() };
        // The host knows what it has written into a status; a guest that looked at it does not.
        let is_news = |parent: &ParentRef| {
            trigger != Trigger::ParentStatus || !change.is_own || memos.reads_status(parent)
        };
        let parents = plugins.iter().map(parent).filter(is_news);
        requests.extend(parents.map(|parent| (parent, trigger)));
    }
    for (plugin, parents, namespaced) in subscriptions.children.get(&change.watch).into_iter().flatten() {
        let [before, after] = [before, after]
            .map(|child| child.and_then(|child| parent_of(child, plugin, &parents.gvk, *namespaced)));
        // An owner that lost a child has to know as well as the one that gained it.
        let before = before.filter(|before| after.as_ref() != Some(before));
        requests.extend(
            before
                .into_iter()
                .chain(after)
                .map(|parent| (ParentRef { plugin: Arc::clone(plugin), parent }, Trigger::Child)),
        );
    }
    for (plugin, parents) in subscriptions.fields.get(&change.watch).into_iter().flatten() {
        let claims = before.into_iter().chain(after).flat_map(fields::claims);
        let parents: BTreeSet<_> = claims
            .filter(|claim| claim.plugin == &**plugin)
            .map(|claim| fields::parent_of(&claim, parents))
            .collect();
        requests.extend(
            parents
                .into_iter()
                .map(|parent| (ParentRef { plugin: Arc::clone(plugin), parent }, Trigger::Child)),
        );
    }
    requests.extend(memos.affected(change).into_iter().map(|parent| (parent, Trigger::Read)));
    if change.is_first_seen {
        for (_, trigger) in &mut requests {
            *trigger = Trigger::Listed;
        }
    }
    requests
}

/// What a change is to the plugin whose parent it is; `None` if nothing of it matters to anybody.
fn of_parent(before: Option<&Object>, after: Option<&Object>) -> Option<Trigger> {
    let (Some(before), Some(after)) = (before, after) else {
        // It appeared, or it vanished: then what is kept of it goes.
        return before.or(after).map(|_| Trigger::Parent);
    };
    if (before.body_hash, &before.uid, &before.deleted) != (after.body_hash, &after.uid, &after.deleted) {
        return Some(Trigger::Parent);
    }
    let is_same = before.status_hash == after.status_hash && before.owned_fields == after.owned_fields;
    (!is_same).then_some(Trigger::ParentStatus)
}

/// The parent of this plugin that controls an object. The version in the owner reference may be an older one
/// that the API server serves as well.
fn parent_of(child: &Object, plugin: &str, parents: &Gvk, namespaced: bool) -> Option<ObjectKey> {
    let owner = child.controller()?;
    let is_ours = child.labels.get(LABEL_OWNED_BY).is_some_and(|owned_by| owned_by == plugin)
        && (&owner.gvk.group, &owner.gvk.kind) == (&parents.group, &parents.kind);
    is_ours.then(|| ObjectKey {
        gvk: parents.clone(),
        namespace: if namespaced { child.key.namespace.clone() } else { None },
        name: (&*owner.name).into(),
    })
}

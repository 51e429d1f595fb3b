//! The index from an object to the parents whose guests read it.

use super::{ParentRef, Read};
use crate::{
    object::{Object, Selector},
    observe::watch::WatchKey,
};
use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
};

/// By the watch that the read was answered from.
#[derive(Default)]
pub(super) struct Index(HashMap<WatchKey, Readers>);

type Parents = HashSet<Arc<ParentRef>>;

/// Who reads the objects of one watch.
#[derive(Default)]
struct Readers {
    /// By namespace and name.
    gets: HashMap<(Option<Arc<str>>, Arc<str>), Parents>,
    /// By namespace; `None` for lists of all.
    lists: HashMap<Option<Arc<str>>, Lists>,
}

/// Who lists the objects of one namespace. Most selectors ask for a value of a label, often another one for
/// each parent: those are found by the label, so that a change costs the same however many there are.
#[derive(Default)]
struct Lists {
    by_label: HashMap<Box<str>, HashMap<Box<str>, Selected>>,
    others: Selected,
}

type Selected = HashMap<Option<Selector>, Parents>;

impl Index {
    pub(super) fn subscribe(&mut self, parent: &Arc<ParentRef>, read: &Read) {
        let parent = || Arc::clone(parent);
        match read {
            Read::Get { watch, namespace, name } => {
                let readers = self.0.entry(watch.clone()).or_default();
                readers.gets.entry((namespace.clone(), Arc::clone(name))).or_default().insert(parent());
            }
            Read::List { watch, namespace, selector } => {
                let readers = self.0.entry(watch.clone()).or_default();
                let lists = readers.lists.entry(namespace.clone()).or_default();
                let keep_in = |selected: &mut Selected| {
                    selected.entry(selector.clone()).or_default().insert(parent());
                };
                match selector.as_ref().and_then(Selector::needed_labels) {
                    Some(labels) => labels.for_each(|(label, value)| {
                        keep_in(
                            lists.by_label.entry(label.into()).or_default().entry(value.into()).or_default(),
                        );
                    }),
                    None => keep_in(&mut lists.others),
                }
            }
            // Changes of a parent and of its children are enqueued whoever reads them; time has no changes.
            Read::Children | Read::PreviousStatus | Read::Clock => {}
        }
    }

    pub(super) fn unsubscribe(&mut self, parent: &ParentRef, read: &Read) {
        let without = |parents: &mut Parents| {
            parents.remove(parent);
            parents.is_empty()
        };
        match read {
            Read::Get { watch, namespace, name } => narrow(&mut self.0, watch, |readers| {
                narrow(&mut readers.gets, &(namespace.clone(), Arc::clone(name)), without);
                readers.is_empty()
            }),
            Read::List { watch, namespace, selector } => narrow(&mut self.0, watch, |readers| {
                narrow(&mut readers.lists, namespace, |lists| {
                    let leave = |selected: &mut Selected| {
                        narrow(selected, selector, without);
                        selected.is_empty()
                    };
                    match selector.as_ref().and_then(Selector::needed_labels) {
                        Some(labels) => labels.for_each(|(label, value)| {
                            narrow(&mut lists.by_label, label, |values| {
                                narrow(values, value, leave);
                                values.is_empty()
                            });
                        }),
                        None => {
                            leave(&mut lists.others);
                        }
                    }
                    lists.by_label.is_empty() && lists.others.is_empty()
                });
                readers.is_empty()
            }),
            Read::Children | Read::PreviousStatus | Read::Clock => {}
        }
    }

    /// The parents with a read that one of these objects is or was an answer to; some perhaps more than once.
    pub(super) fn readers<'a>(
        &self,
        watch: &WatchKey,
        objects: impl Iterator<Item = &'a Object>,
    ) -> Vec<Arc<ParentRef>> {
        let mut parents = Vec::new();
        if let Some(readers) = self.0.get(watch) {
            objects.for_each(|object| readers.of(object, &mut parents));
        }
        parents
    }
}

/// Changes the value of a key, and removes both if it says that nothing is left.
fn narrow<K, Q, V>(map: &mut HashMap<K, V>, key: &Q, is_empty_after: impl FnOnce(&mut V) -> bool)
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ?Sized,
{
    if map.get_mut(key).is_some_and(is_empty_after) {
        map.remove(key);
    }
}

impl Readers {
    fn is_empty(&self) -> bool {
        self.gets.is_empty() && self.lists.is_empty()
    }

    /// Adds those with a read that this object is or was an answer to.
    fn of(&self, object: &Object, parents: &mut Vec<Arc<ParentRef>>) {
        if !self.gets.is_empty() {
            let name = (object.key.namespace.clone(), Arc::clone(&object.key.name));
            parents.extend(self.gets.get(&name).into_iter().flatten().cloned());
        }
        if self.lists.is_empty() {
            return;
        }
        let own = object.key.namespace.as_ref().and_then(|_| self.lists.get(&object.key.namespace));
        for lists in own.into_iter().chain(self.lists.get(&None)) {
            let labels = if lists.by_label.is_empty() { None } else { Some(&object.labels) };
            let labelled = labels.into_iter().flatten().filter_map(|(label, value)| {
                lists.by_label.get(&**label).and_then(|values| values.get(&**value))
            });
            for (selector, readers) in labelled.chain([&lists.others]).flatten() {
                if selector.as_ref().is_none_or(|selector| selector.matches(&object.labels)) {
                    parents.extend(readers.iter().cloned());
                }
            }
        }
    }
}

#[cfg(test)]
impl Index {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

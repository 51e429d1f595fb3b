//! In which order a watch's objects are kept, and by what they are found.

use crate::object::{LABEL_PARENT, Object, ObjectKey};
use equivalent::{Comparable, Equivalent};
use std::{cmp::Ordering, sync::Arc};

/// Namespace and name, in the order of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Name<'a> {
    pub(in super::super) namespace: Option<&'a str>,
    pub(in super::super) name: &'a str,
}

impl<'a> Name<'a> {
    pub(in super::super) fn of(key: &'a ObjectKey) -> Self {
        Self { namespace: key.namespace.as_deref(), name: &key.name }
    }
}

/// An object, sorted by its name.
#[derive(Clone)]
pub(in super::super) struct Entry(pub(super) Arc<Object>);

impl Entry {
    pub(in super::super) fn new(object: Object) -> Self {
        Self(Arc::new(object))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        Name::of(&self.0.key).cmp(&Name::of(&other.0.key))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl Equivalent<Entry> for Name<'_> {
    fn equivalent(&self, entry: &Entry) -> bool {
        *self == Name::of(&entry.0.key)
    }
}

impl Comparable<Entry> for Name<'_> {
    fn compare(&self, entry: &Entry) -> Ordering {
        self.cmp(&Name::of(&entry.0.key))
    }
}

/// An object, sorted by the uid in its parent label, then by its name.
#[derive(Clone)]
pub(super) struct Child {
    pub(super) parent: Arc<str>,
    pub(super) object: Arc<Object>,
}

impl Child {
    pub(super) fn of(object: &Arc<Object>) -> Option<Self> {
        let label = object.labels.get(LABEL_PARENT)?;
        // Mostly the parent is an owner too: then its uid is there to be shared.
        let owner = object.owners.iter().find(|owner| *owner.uid == **label);
        let parent = owner.map_or_else(|| Arc::from(label.as_str()), |owner| Arc::clone(&owner.uid));
        Some(Self { parent, object: Arc::clone(object) })
    }

    fn sort_key(&self) -> (&str, Name<'_>) {
        (&self.parent, Name::of(&self.object.key))
    }
}

impl Ord for Child {
    fn cmp(&self, other: &Self) -> Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

impl PartialOrd for Child {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Child {}

impl Equivalent<Child> for (&str, Name<'_>) {
    fn equivalent(&self, child: &Child) -> bool {
        *self == child.sort_key()
    }
}

impl Comparable<Child> for (&str, Name<'_>) {
    fn compare(&self, child: &Child) -> Ordering {
        self.cmp(&child.sort_key())
    }
}

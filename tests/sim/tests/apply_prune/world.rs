//! The cluster: one parent, one child in each of two kinds, and what the `Plugin` of the host says.
//!
//! What the API server does with each request, and what others do. A child is a number, 0 or 1, and so is its kind;
//! a set of them is a set of bits.

/// Tells objects of one name apart.
pub(crate) type Uid = u8;

/// The children, and their kinds.
pub(crate) const CHILDREN: [usize; 2] = [0, 1];

/// The set of this one child, or kind.
pub(crate) fn bit(child: usize) -> u8 {
    1 << child
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Parent {
    pub(crate) uid: Uid,
    /// The children that it asks for.
    pub(crate) spec: u8,
    pub(crate) is_terminating: bool,
    pub(crate) has_finalizer: bool,
    pub(crate) said: Option<Said>,
}

/// A status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Said {
    pub(crate) plan: u8,
    pub(crate) is_ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Child {
    pub(crate) uid: Uid,
    /// The host created it; its field manager owns fields of it.
    pub(crate) is_ours: bool,
    /// Somebody else has changed what is planned.
    pub(crate) is_drifted: bool,
    /// The label with the uid of the parent.
    pub(crate) label: Option<Uid>,
    /// The uid in the controller reference.
    pub(crate) owner: Option<Uid>,
    pub(crate) is_terminating: bool,
}

impl Child {
    /// Whether it is as it was applied for this parent.
    pub(crate) fn is_in_place(self, parent: Uid) -> bool {
        self.owner == Some(parent) && self.label == Some(parent) && !self.is_drifted && !self.is_terminating
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) parent: Option<Parent>,
    pub(crate) children: [Option<Child>; 2],
    /// The kinds that the status of the `Plugin` records.
    pub(crate) recorded: u8,
    /// The kinds that the plugin's present version declares.
    pub(crate) declared: u8,
    /// The newest uids.
    pub(crate) uids: [Uid; 3],
}

/// The apply of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Apply {
    /// The object that it was decided on.
    pub(crate) live: Option<Uid>,
    /// `metadata.uid` of the request.
    pub(crate) uid: Option<Uid>,
}

/// How the API server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The object is another one, or another version of it: it is looked at anew.
    Conflict,
    /// Others own the fields.
    FieldConflict,
}

impl World {
    /// Server-side apply. With a uid it never creates. Without a live object nothing is forced.
    pub(crate) fn apply(&mut self, child: usize, apply: Apply, parent: Uid) -> Result<(), Refusal> {
        let Some(present) = &mut self.children[child] else {
            if apply.uid.is_some() {
                return Err(Refusal::Conflict);
            }
            let made = Child { is_ours: true, label: Some(parent), owner: Some(parent), ..self.fresh(child) };
            self.children[child] = Some(made);
            return Ok(());
        };
        if apply.uid.is_some_and(|uid| uid != present.uid) {
            return Err(Refusal::Conflict);
        }
        if apply.live.is_none() && present.is_drifted {
            return Err(Refusal::FieldConflict);
        }
        (present.label, present.owner, present.is_drifted) = (Some(parent), Some(parent), false);
        Ok(())
    }

    /// Marks as deleted; without a uid whatever is there.
    pub(crate) fn delete(&mut self, child: usize, uid: Option<Uid>) {
        let present = self.children[child].as_mut();
        if let Some(present) = present.filter(|present| uid.is_none_or(|uid| uid == present.uid)) {
            present.is_terminating = true;
        }
    }

    /// Puts a parent in place of one version of it; `None`: of whatever is there.
    pub(crate) fn change_parent(
        &mut self,
        version: Option<Parent>,
        change: impl FnOnce(&mut Parent),
    ) -> Result<(), Refusal> {
        let Some(parent) = self.parent.as_mut().filter(|parent| version.is_none_or(|seen| seen == **parent))
        else {
            return Err(Refusal::Conflict);
        };
        change(parent);
        if parent.is_terminating && !parent.has_finalizer {
            self.parent = None;
        }
        Ok(())
    }

    /// What the garbage collector takes: the owner of it is gone.
    pub(crate) fn is_orphan(&self, child: usize) -> bool {
        let owner = self.children[child].and_then(|child| child.owner);
        owner.is_some_and(|owner| self.parent.is_none_or(|parent| parent.uid != owner))
    }

    /// What stands where the host has not yet created anything, or somebody else has.
    pub(crate) fn fresh(&mut self, child: usize) -> Child {
        self.uids[child] += 1;
        Child {
            uid: self.uids[child],
            is_ours: false,
            is_drifted: false,
            label: None,
            owner: None,
            is_terminating: false,
        }
    }

    pub(crate) fn create_parent(&mut self) {
        self.uids[2] += 1;
        let uid = self.uids[2];
        let parent = Parent { uid, spec: 0b11, is_terminating: false, has_finalizer: false, said: None };
        self.parent = Some(parent);
    }
}

//! The garbage collector.

use super::{Cluster, Place, owners};
use crate::api::{
    delete::{FOREGROUND, ORPHAN},
    text,
};
use serde_json::{Value, json};

/// Whether an object that was deleted waits for the garbage collector.
pub(super) fn waits(object: &Value) -> bool {
    has(object, FOREGROUND) || has(object, ORPHAN)
}

fn has(object: &Value, finalizer: &str) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    finalizers.into_iter().any(|one| one == finalizer)
}

impl Cluster {
    /// Deletes an object whose owners are all gone; takes off those that are, where others are left.
    pub(super) fn collect(&mut self, (resource, key): &Place) {
        let Some(object) = self.server.object(resource, &key.0, &key.1) else { return };
        // An owner is in the same namespace, or in none; any other is as good as gone.
        let is_there = |owner: &&Value| {
            let place = self.living.get(text(owner, "/uid"));
            place.is_some_and(|(_, (namespace, _))| namespace.is_empty() || *namespace == key.0)
        };
        let all = owners(&object).count();
        let left: Vec<_> = owners(&object).filter(is_there).cloned().collect();
        if left.len() == all {
            return;
        }
        if left.is_empty() {
            if object["metadata"]["deletionTimestamp"].is_null() {
                self.delete(&object, "Background");
            }
            return;
        }
        self.patch(&object, "", &json!({"metadata": {"ownerReferences": left}}));
    }

    /// Deletes the dependents of an object, or lets them be nobody's, and then lets it go.
    pub(super) fn release(&mut self, (resource, key): &Place) {
        let Some(owner) = self.server.object(resource, &key.0, &key.1) else { return };
        if owner["metadata"]["deletionTimestamp"].is_null() || !waits(&owner) {
            return;
        }
        let uid = text(&owner, "/metadata/uid");
        let places = self.dependents.get(uid).cloned().unwrap_or_default();
        let mut is_blocked = false;
        for (resource, key) in places {
            let Some(dependent) = self.server.object(&resource, &key.0, &key.1) else { continue };
            if has(&owner, ORPHAN) {
                let left: Vec<_> = owners(&dependent).filter(|owner| owner["uid"] != uid).cloned().collect();
                self.patch(&dependent, "", &json!({"metadata": {"ownerReferences": left}}));
                continue;
            }
            let blocks = |owner: &&Value| owner["uid"] == uid && owner["blockOwnerDeletion"] == true;
            is_blocked |= owners(&dependent).any(|owner| blocks(&owner));
            if dependent["metadata"]["deletionTimestamp"].is_null() {
                self.delete(&dependent, "Foreground");
            }
        }
        let is_blocked = is_blocked && {
            let left = self.dependents.get(uid).into_iter().flatten();
            left.into_iter().any(|(resource, key)| self.server.object(resource, &key.0, &key.1).is_some())
        };
        if !is_blocked {
            let finalizer = if has(&owner, ORPHAN) { ORPHAN } else { FOREGROUND };
            self.drop_finalizer(&owner, finalizer);
        }
    }
}

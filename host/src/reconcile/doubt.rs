//! Writes of which nobody knows whether they happened: no answer, a broken connection, a 5xx (rule R3a).
//!
//! What such a write was about is read anew before the next plan of its parent. Else that plan would be made from
//! a cache that may not have the write yet: a condition would get another transition time for the status it has, a
//! guest would miss the child it has made.

use super::{Error, Reconciler};
use crate::{
    act::apply,
    object::ObjectKey,
    observe::{
        client::{self, Answer},
        reads::ParentRef,
    },
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Objects to read anew, by the parent whose pass wrote them.
#[derive(Default)]
pub struct Doubts(Mutex<HashMap<ParentRef, BTreeSet<ObjectKey>>>);

impl Doubts {
    /// Notes what is in doubt after a pass that failed.
    pub(super) fn note(&self, reference: &ParentRef, error: &Error) {
        let keys = keys(&reference.parent, error);
        if !keys.is_empty() {
            self.lock().entry(reference.clone()).or_default().extend(keys);
        }
    }

    fn of(&self, reference: &ParentRef) -> Option<BTreeSet<ObjectKey>> {
        self.lock().get(reference).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ParentRef, BTreeSet<ObjectKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes are not among them: they name a uid, so a second one does no harm.
fn keys(parent: &ObjectKey, error: &Error) -> Vec<ObjectKey> {
    let of_parent = |error: &client::Error| {
        error.answer.outcome_is_unknown().then(|| parent.clone()).into_iter().collect()
    };
    match error {
        Error::Metadata(error) | Error::Finalizer(error) | Error::Status(error) => of_parent(error),
        Error::Apply(failed) => {
            let in_doubt = failed.iter().filter(|(_, error)| match error {
                apply::Error::Apply { source, .. } => source.answer.outcome_is_unknown(),
                apply::Error::NotOwned { .. }
                | apply::Error::Kind { .. }
                | apply::Error::Peek { .. }
                | apply::Error::Immutable { .. }
                | apply::Error::Contested { .. }
                | apply::Error::Replace { .. } => false,
            });
            in_doubt.map(|(key, _)| key.clone()).collect()
        }
        // Reading changes nothing: what was in doubt still is.
        Error::Unplanned(_) | Error::Prune(_) | Error::Doubt(_) | Error::Panicked(_) => Vec::new(),
    }
}

impl Reconciler {
    /// Reads anew what earlier passes over this parent left in doubt.
    ///
    /// # Errors
    /// The API server cannot tell now, so the parent cannot be planned now.
    pub(super) async fn settle_doubts(&self, reference: &ParentRef) -> Result<(), client::Error> {
        for key in self.doubts.of(reference).into_iter().flatten() {
            let found = async { self.client.get(&*self.discovery.kind(&key.gvk).await?, &key).await };
            match found.await {
                Ok(Some(object)) => drop(self.cache.wrote(object)),
                Err(error)
                    if error.answer.outcome_is_unknown() || error.answer == Answer::TooManyRequests =>
                {
                    return Err(error);
                }
                // It is not there, or not ours to see any more: no write of ours can still be news.
                Ok(None) | Err(_) => {}
            }
        }
        self.doubts.lock().remove(reference);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;

    fn error(answer: Answer) -> client::Error {
        client::Error {
            verb: "patch",
            target: String::new(),
            answer,
            message: String::new(),
            retry_after: None,
        }
    }

    fn key(kind: &str) -> ObjectKey {
        ObjectKey { gvk: Gvk::new("v1", kind), namespace: Some("demo".into()), name: "w".into() }
    }

    #[test]
    fn only_writes_of_unknown_outcome_leave_a_doubt() {
        let parent = key("Widget");
        for (answer, is_in_doubt) in [
            (Answer::Connection, true),
            (Answer::Timeout, true),
            (Answer::Unavailable, true),
            (Answer::TooManyRequests, false),
            (Answer::VersionConflict, false),
            (Answer::Invalid(Vec::new()), false),
        ] {
            let of_parent = if is_in_doubt { vec![parent.clone()] } else { Vec::new() };
            assert_eq!(keys(&parent, &Error::Status(error(answer.clone()))), of_parent, "{answer:?}");
            let child = key("ConfigMap");
            let source = error(answer.clone());
            let failed = vec![(child.clone(), apply::Error::Apply { child: child.clone(), source })];
            let of_child = if is_in_doubt { vec![child] } else { Vec::new() };
            assert_eq!(keys(&parent, &Error::Apply(failed)), of_child, "{answer:?}");
            assert_eq!(keys(&parent, &Error::Prune(error(answer))), []);
        }
    }
}

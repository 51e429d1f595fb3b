//! The one function that deletes.

use super::{apply::Context, prune::Complete};
use crate::{
    decide::plan::Child,
    object::Object,
    observe::client::{self, Answer},
};
use std::sync::Arc;

/// That an object may be deleted (rule A6). Whoever has one has proven it.
#[derive(Clone, Copy)]
pub(super) struct Warrant(());

impl Warrant {
    /// It is not planned, and the plan is in place completely.
    pub(super) fn unplanned(_proof: &Complete<'_>) -> Self {
        Self(())
    }

    /// The plan that is being applied creates it anew: the API server refused to change it.
    pub(super) fn replaced(_child: &Child, _refusal: &client::Error) -> Self {
        Self(())
    }
}

/// Deletes exactly the object that was decided on, by its uid; whether it goes now.
///
/// False: it is an object of the same name that was not meant. One that has gone already goes as well.
///
/// # Errors
/// The request's error.
pub(super) async fn one(
    context: Context<'_>,
    object: &Arc<Object>,
    _warrant: Warrant,
) -> Result<bool, client::Error> {
    let Context { client, discovery, cache, .. } = context;
    let kind = match discovery.kind(&object.key.gvk).await {
        Ok(kind) => kind,
        // Its objects went with the kind.
        Err(error) if error.answer == Answer::KindNotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match client.delete(&kind, &object.key, &object.uid).await {
        Ok(()) => {
            drop(cache.deleting(&object.key, &object.uid));
            Ok(true)
        }
        Err(error) if error.answer == Answer::UidMismatch => Ok(false),
        Err(error) => {
            if error.answer == Answer::KindNotFound {
                discovery.forget(&object.key.gvk);
            }
            Err(error)
        }
    }
}

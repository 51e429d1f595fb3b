//! Write Kubernetes controllers as WASM plugins for Oarlock.
//!
//! A plugin is a pure function: given an object and what it reads, which children, status and conditions should
//! there be? The host does the rest: watches, queue, server-side apply, pruning, finalizers, status, events.
//!
//! ```
//! use oarlock_sdk::{Child, Condition, Failure, Manifest, Object, Plan, Reads, Reconciler};
//! use serde_json::json;
//!
//! #[derive(serde::Deserialize)]
//! struct Greeting {
//!     text: String,
//! }
//!
//! struct GreetingController;
//!
//! impl Reconciler for GreetingController {
//!     type Object = Object<Greeting>;
//!
//!     fn manifest() -> Manifest {
//!         Manifest::new("demo.oarlock.dev/v1", "Greeting").children([("v1", "ConfigMap")])
//!     }
//!
//!     fn reconcile(greeting: &Object<Greeting>, _reads: &Reads) -> Result<Plan, Failure> {
//!         let config_map = json!({
//!             "apiVersion": "v1",
//!             "kind": "ConfigMap",
//!             "metadata": {"name": greeting.metadata.name},
//!             "data": {"text": greeting.spec.text},
//!         });
//!         Ok(Plan {
//!             children: vec![Child::from(config_map)],
//!             conditions: vec![Condition::new("Greeted", true, "Written", "The greeting is in its ConfigMap.")],
//!             ..Plan::default()
//!         })
//!     }
//! }
//!
//! oarlock_sdk::export!(GreetingController);
//! ```
//!
//! The crate is a `cdylib` (and an `rlib`, so that `cargo test` reaches it).
//! Every call runs in a fresh instance: nothing a plugin keeps in a `static` is there at the next call.
//! `testing` runs a [`Reconciler`] natively on YAML fixtures.
#![deny(missing_docs)]

#[cfg(all(target_arch = "wasm32", feature = "bump"))]
mod alloc;
#[doc(hidden)]
pub mod bindings;
#[doc(hidden)]
pub mod export;
mod failure;
pub mod log;
mod manifest;
mod object;
mod plan;
mod reads;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

pub use bindings::oarlock::plugin::children::{Child as ObservedChild, Readiness};
pub use bindings::oarlock::plugin::log::Level;
pub use bindings::oarlock::plugin::types::{
    Condition, ConditionStatus, Event, EventType, Failure, FailureKind, ObjectKind,
};
pub use manifest::{Manifest, Selection};
pub use object::{Object, ObjectMeta};
pub use plan::{Child, Metadata, Plan, Teardown, Update};
pub use reads::{Children, Reads};

/// A controller as a pure function.
///
/// The same object and the same answers to the same reads must give the same plan: the host calls again only when
/// one of them changes.
pub trait Reconciler {
    /// The parent, as far as the plugin needs it: usually [`Object`] of a spec, or any type that deserializes.
    ///
    /// An object that does not deserialize becomes a permanent failure with reason `InvalidObject`.
    type Object: serde::de::DeserializeOwned;

    /// Says what the plugin reconciles, what it makes and what it reads.
    fn manifest() -> Manifest;

    /// Decides what should be there for one object.
    ///
    /// # Errors
    ///
    /// Whatever keeps the plugin from deciding. Nothing is applied and nothing is removed then.
    fn reconcile(object: &Self::Object, reads: &Reads) -> Result<Plan, Failure>;

    /// Decides what should still be there while the object is being deleted.
    ///
    /// Called only if the manifest says [`Manifest::finalizes`], until it answers that it is done.
    ///
    /// # Errors
    ///
    /// As for [`Reconciler::reconcile`]; the object stays until a later call is done.
    fn finalize(_object: &Self::Object, _reads: &Reads) -> Result<Teardown, Failure> {
        Ok(Teardown::done())
    }
}

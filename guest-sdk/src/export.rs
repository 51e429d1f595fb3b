//! Turns a [`Reconciler`] into the exports of a component.

use std::mem::ManuallyDrop;

use crate::bindings::oarlock::plugin::types;
use crate::{Failure, Reads, Reconciler, object};

/// Exports a [`Reconciler`] as the plugin of this crate.
///
/// The manifest's name and version are those of the crate, unless it sets them.
#[macro_export]
macro_rules! export {
    ($controller:ty) => {
        const _: () = {
            struct Plugin;

            impl $crate::bindings::Guest for Plugin {
                fn describe() -> String {
                    $crate::export::describe::<$controller>(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
                }

                fn reconcile(
                    object: String,
                ) -> Result<$crate::bindings::oarlock::plugin::types::Plan, $crate::Failure> {
                    $crate::export::reconcile::<$controller>(&object)
                }

                fn finalize(
                    object: String,
                ) -> Result<$crate::bindings::oarlock::plugin::types::Teardown, $crate::Failure> {
                    $crate::export::finalize::<$controller>(&object)
                }
            }

            // Two plugins in one native program would define the same symbols; there they only count as used.
            #[cfg(target_arch = "wasm32")]
            $crate::bindings::export_plugin! { Plugin with_types_in $crate::bindings }
            #[cfg(not(target_arch = "wasm32"))]
            let _ = <Plugin as $crate::bindings::Guest>::describe;
        };
    };
}

/// The manifest as JSON text.
pub fn describe<R: Reconciler>(name: &str, version: &str) -> String {
    report_panics();
    R::manifest().to_json(name, version).expect("a manifest is strings and JSON values")
}

/// One call of [`Reconciler::reconcile`].
pub fn reconcile<R: Reconciler>(object: &str) -> Result<types::Plan, Failure> {
    report_panics();
    // Freeing it piece by piece is wasted on an instance that ends with this call.
    let object = ManuallyDrop::new(object::parse(object)?);
    R::reconcile(&object, &Reads::default()).map(Into::into)
}

/// One call of [`Reconciler::finalize`].
pub fn finalize<R: Reconciler>(object: &str) -> Result<types::Teardown, Failure> {
    report_panics();
    // Freeing it piece by piece is wasted on an instance that ends with this call.
    let object = ManuallyDrop::new(object::parse(object)?);
    R::finalize(&object, &Reads::default()).map(Into::into)
}

/// Writes a panic to the log, as `panicked at src/lib.rs:10:5: message`: a component has no stderr, and the host
/// shows the last error line of a guest that trapped.
#[cfg(target_arch = "wasm32")]
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        match panic.location() {
            Some(location) => crate::error!("panicked at {location}: {message}"),
            None => crate::error!("panicked: {message}"),
        }
    }));
}

#[cfg(not(target_arch = "wasm32"))]
fn report_panics() {}

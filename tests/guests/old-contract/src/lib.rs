//! A plugin of an older contract: the host has to name both versions.
#![cfg(target_arch = "wasm32")]

#[allow(
    unsafe_code,
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod bindings {
    wit_bindgen::generate!({world: "plugin", path: "wit"});

    struct Plugin;

    impl Guest for Plugin {
        fn describe() -> String {
            "{}".to_owned()
        }

        fn reconcile(object: String) -> String {
            // An import that is not used would not be in the component.
            oarlock::plugin::log::write(&object);
            "{}".to_owned()
        }
    }

    export!(Plugin);
}

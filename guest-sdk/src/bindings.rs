//! What `wit-bindgen` makes of the contract; the SDK's own types are re-exported from here.
#![allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

wit_bindgen::generate!({
    world: "plugin",
    path: "wit",
    pub_export_macro: true,
    export_macro_name: "export_plugin",
    default_bindings_module: "oarlock_sdk::bindings",
    additional_derives: [PartialEq, Eq],
});

//! Make it so.

pub mod apply;
pub mod drift;
pub mod events;
mod owned;
pub mod prune;
pub mod status;

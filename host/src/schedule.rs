//! When to look again.

pub mod enqueue;
pub mod queue;

//! How it runs in a cluster: metrics, health, the explain log, logs.

pub mod admin;
pub mod explain;
pub mod journal;
pub mod log;
pub mod metrics;

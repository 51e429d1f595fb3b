//! How it runs in a cluster: metrics, health, logs.

pub mod admin;
pub mod log;
pub mod metrics;

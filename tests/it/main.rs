//! Integration tests: one binary, one shared control plane with one shared host.
//!
//! Each test has a namespace of its own. Tests that restart the host, or need it to themselves, take turns in two
//! more control planes, see [`world::Lab`].

#![expect(clippy::unwrap_used, reason = "a test may panic, and its message is what it is for")]

mod bundle;
mod children;
mod cli;
mod cluster;
mod connection;
mod deletion;
mod demo;
mod deploy;
mod explain;
mod failures;
mod fields;
mod fights;
mod forms;
mod honesty;
mod hostile;
mod lag;
mod limits;
mod loops;
mod machine;
mod methods;
mod mistakes;
mod model;
mod namesakes;
mod order;
mod partial;
mod passthrough;
mod plugins;
mod proxy;
mod queue;
mod quiet;
mod readiness;
mod restart;
mod robustness;
mod scopes;
mod status;
mod status_shapes;
mod swaps;
mod sweep;
mod tidy;
mod watches;
mod world;

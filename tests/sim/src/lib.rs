//! An in-memory Kubernetes API server, and the host against it under faults.
//!
//! One seed is one history, byte for byte: [`simulation`] runs the real host in paused time, in a [`world`] whose
//! [`api`] and [`cluster`] behave as the real ones do, through a connection with [`faults`], while what the
//! [`scenario`] of the seed says happens. [`safety`] judges every write, [`rest`] what the world comes to, and
//! [`examine`] what several runs have in common.

pub mod api;
pub mod cluster;
pub mod components;
pub mod examine;
pub mod faults;
pub mod fields;
pub mod refusal;
pub mod rest;
pub mod safety;
pub mod scenario;
pub mod schema;
pub mod shrink;
pub mod simulation;
pub mod trace;
pub mod world;

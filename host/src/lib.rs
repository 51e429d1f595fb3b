//! Runs Kubernetes controllers whose logic is a pure function in a WASM component.
//!
//! The host owns what is hard and always the same; a plugin decides, for one object, which children, status and
//! conditions there should be. One idea carries everything: **a plan is a pure function of what the guest read,
//! and stays valid until one of those reads changes.**
//!
//! ```text
//! API server ──watch──▶ cache ──▶ enqueue ──▶ queue ──▶ reconcile
//!    ▲                                                     │ 1 snapshot   parent + reads, as of one moment
//!    │                                                     │ 2 plan       guest call, or the memo
//!    │                                                     │ 3 apply      children, then prune
//!    └──────────────── writes ◀────────────────────────────│ 4 status     written only if different
//!                                                          │ 5 report     events, metrics
//!                                                          ▼
//!                                                Outcome ──▶ back to the queue, nowhere else
//! ```
//!
//! The modules, in reading order, each using only what stands above it:
//!
//! - [`object`], [`config`], [`manifest`], [`report`], [`clock`]: the words everything else speaks.
//! - [`observe`]: the API [`client`](observe::client), [`discovery`](observe::discovery),
//!   [`cache`](observe::cache), [`watch`](observe::watch) and tracked [`reads`](observe::reads).
//! - [`schedule`]: [`enqueue`](schedule::enqueue) and the [`queue`](schedule::queue); [`dispatch`] drives it.
//! - [`decide`]: [`plan`](decide::plan), [`readiness`](decide::readiness), [`finalizer`](decide::finalizer) and
//!   the [`guest`](decide::guest) in its sandbox.
//! - [`act`]: [`apply`](act::apply), [`prune`](act::prune), [`status`](act::status), [`events`](act::events).
//! - [`plugins`]: which logic is in force.
//! - [`reconcile`]: the drawing, as a function.
//! - [`operate`], [`run`], [`cli`]: how it runs.
//!
//! **Invariants**, kept by a test on the source text: only `decide/guest` names wasmtime; `schedule` and the
//! rest of `decide` have no `async`, do no I/O and read no clock; only `observe/client` and `cli` build requests.

pub mod clock;
pub mod config;
pub mod manifest;
pub mod object;
pub mod report;

pub mod observe;
pub mod schedule;

pub mod dispatch;

pub mod decide;

pub mod act;

pub mod plugins;

pub mod reconcile;

pub mod operate;

pub mod cli;
pub mod run;

//! What is there: the API server's answers, watches, the cache, and what guests read of it.

pub mod cache;
pub mod client;
pub mod discovery;
pub mod reads;
pub mod watch;

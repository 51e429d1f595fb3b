//! Lines for the plugin's author: [`debug!`](crate::debug), [`info!`](crate::info), [`warn!`](crate::warn) and
//! [`error!`](crate::error), formatted as by `println!`.
//!
//! The host attaches plugin and object, so a line need not name them.

use crate::Level;

/// Writes one line to the host's log; in native tests, to the outcome of the call.
pub fn write(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::oarlock::plugin::log::write(level, message);
    #[cfg(not(target_arch = "wasm32"))]
    crate::testing::log(level, message);
}

/// Writes a line for debugging.
#[macro_export]
macro_rules! debug {
    ($($message:tt)+) => { $crate::log::write($crate::Level::Debug, &format!($($message)+)) };
}

/// Writes an ordinary line.
#[macro_export]
macro_rules! info {
    ($($message:tt)+) => { $crate::log::write($crate::Level::Info, &format!($($message)+)) };
}

/// Writes a line about something odd.
#[macro_export]
macro_rules! warn {
    ($($message:tt)+) => { $crate::log::write($crate::Level::Warn, &format!($($message)+)) };
}

/// Writes a line about something wrong.
#[macro_export]
macro_rules! error {
    ($($message:tt)+) => { $crate::log::write($crate::Level::Error, &format!($($message)+)) };
}

//! What the host says, on stderr: for people on a terminal, one JSON object a line otherwise.

use std::io::{self, IsTerminal};
use tracing_subscriber::{EnvFilter, filter::ParseError, fmt};

/// Why the log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter makes no sense.
    #[error("log filter {filter:?} is malformed; it is like `info` or `warn,oarlock=debug,guest=debug`")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong.
        #[source]
        source: ParseError,
    },
}

/// Starts the log with a filter such as `info` or `warn,oarlock=debug`. A log that runs already stays.
///
/// # Errors
/// The filter is malformed.
pub fn start(filter: &str) -> Result<(), Error> {
    let parsed = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| Error::Filter { filter: filter.to_owned(), source })?;
    let to_stderr = fmt().with_env_filter(parsed).with_writer(io::stderr);
    // Only a second start fails here: the first one's settings hold then.
    let _ = if io::stderr().is_terminal() {
        to_stderr.compact().try_init()
    } else {
        to_stderr.json().flatten_event(true).with_span_list(false).try_init()
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_names_a_malformed_filter() {
        let error = start("oarlock=loud").unwrap_err();
        assert!(error.to_string().starts_with(r#"log filter "oarlock=loud" is malformed"#), "{error}");
    }
}

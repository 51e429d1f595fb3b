//! What the host says, on stderr: for people on a terminal, one JSON object a line otherwise.
//!
//! A thread of its own writes it: whoever says something never waits for whoever reads, nor hears that the disk is
//! full. What there is no room for is dropped, and counted in the next line that is written.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};
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

/// Lines on their way: a megabyte or two, and more than a start with many kinds says at once.
const LINES: usize = 4096;
/// How long the end of the log waits until what was said last is written: it is short, or nobody reads.
const GRACE: Duration = Duration::from_secs(1);

/// A log that runs; when it is dropped, what was said by then is written.
#[must_use = "dropping it waits for what was said last"]
pub struct Log(Lines);

impl Drop for Log {
    fn drop(&mut self) {
        let (written, wait) = sync_channel(1);
        // Where there is no room, nobody reads. An error of the wait is the same, or the end of the thread.
        if self.0.sender.try_send(Item::Mark(written)).is_ok() {
            let _ = wait.recv_timeout(GRACE);
        }
    }
}

enum Item {
    Line(Vec<u8>),
    /// Everything before is written.
    Mark(SyncSender<()>),
}

/// The way to the thread that writes.
#[derive(Clone)]
struct Lines {
    sender: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Write for Lines {
    /// Takes a whole line: the subscriber writes each at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Item::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the thread that writes.
fn lines(mut to: impl Write + Send + 'static, dropped_line: fn(u64) -> String) -> Lines {
    let (sender, receiver): (_, Receiver<Item>) = sync_channel(LINES);
    let dropped = Arc::new(AtomicU64::new(0));
    let lines = Lines { sender, dropped: dropped.clone() };
    thread::spawn(move || {
        for item in receiver {
            // What cannot be written is lost: there is nobody to tell.
            match item {
                Item::Line(line) => drop(to.write_all(&line)),
                Item::Mark(written) => drop(written.send(())),
            }
            let dropped = dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                drop(to.write_all(dropped_line(dropped).as_bytes()));
            }
        }
    });
    lines
}

/// Starts the log with a filter such as `info` or `warn,oarlock=debug`. A log that runs already stays.
///
/// # Errors
/// The filter is malformed.
pub fn start(filter: &str) -> Result<Log, Error> {
    let parsed = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| Error::Filter { filter: filter.to_owned(), source })?;
    let is_terminal = io::stderr().is_terminal();
    let dropped_line: fn(u64) -> String = if is_terminal {
        |dropped| format!("{dropped} lines of the log were dropped, as nobody read them\n")
    } else {
        |dropped| {
            let message = "lines of the log were dropped, as nobody read them";
            format!("{}\n", serde_json::json!({"level": "WARN", "message": message, "dropped": dropped}))
        }
    };
    let lines = lines(io::stderr(), dropped_line);
    let writer = lines.clone();
    let to_stderr = fmt().with_env_filter(parsed).with_writer(move || writer.clone());
    // Only a second start fails here: the first one's settings hold then.
    let _ = if is_terminal {
        to_stderr.compact().try_init()
    } else {
        to_stderr.json().flatten_event(true).with_span_list(false).try_init()
    };
    Ok(Log(lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn start_names_a_malformed_filter() {
        let error = start("oarlock=loud").map(drop).unwrap_err();
        assert!(error.to_string().starts_with(r#"log filter "oarlock=loud" is malformed"#), "{error}");
    }

    /// Takes nothing until it is let.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<Vec<u8>>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_nobody_reads_is_dropped_and_counted_and_nobody_waits() {
        let pipe = Pipe::default();
        let mut log = Log(lines(pipe.clone(), |dropped| format!("{dropped} dropped\n")));
        let full = pipe.0.lock().unwrap();
        // One is being written, perhaps; the channel holds so many more.
        for _ in 0..LINES + 11 {
            log.0.write_all(b"line\n").unwrap();
        }
        let dropped = log.0.dropped.load(Ordering::Relaxed);
        assert!((10..=11).contains(&dropped), "{dropped}");
        drop(full);
        // There is room once the thread has begun.
        while log.0.sender.try_send(Item::Line(b"last\n".to_vec())).is_err() {
            thread::yield_now();
        }
        while !pipe.0.lock().unwrap().ends_with(b"last\n") {
            thread::yield_now();
        }
        drop(log);
        let written = String::from_utf8(pipe.0.lock().unwrap().clone()).unwrap();
        assert!(written.contains(&format!("\n{dropped} dropped\n")), "{}", &written[written.len() - 100..]);
    }
}

//! What a guest says: log lines within a limit, and its last words, for when it traps.

use super::super::LogLine;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::Level;

/// Last words are for a condition's message: enough for a panic with its place.
pub(in super::super) const LAST_WORDS_BYTES: usize = 1_000;
/// An output without line breaks is cut into lines of this length.
const LINE_BYTES: usize = 4 << 10;

/// What one call said.
#[derive(Debug, Default)]
pub(in super::super) struct Logs {
    pub(in super::super) lines: Vec<LogLine>,
    /// Bytes that were dropped.
    pub(in super::super) dropped: usize,
    /// Bytes that may still come.
    left: usize,
    /// Lines that may still come.
    lines_left: usize,
    /// The last error lines, or the panic.
    last_words: String,
    panicked: bool,
    /// Lines of stdout and stderr that have no end yet.
    open: [Vec<u8>; 2],
}

/// Where WASI's output comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    Stdout,
    Stderr,
}

impl Logs {
    pub(super) fn new(bytes: usize, lines: usize) -> Self {
        Self { left: bytes, lines_left: lines, ..Self::default() }
    }

    /// One line. Every line costs a byte more than it has, so that empty ones that are dropped count too.
    pub(super) fn write(&mut self, level: Level, message: String) {
        if level == Level::ERROR {
            self.remember(&message);
        }
        let cost = message.len() + 1;
        if cost <= self.left && self.lines_left > 0 {
            self.left -= cost;
            self.lines_left -= 1;
            self.lines.push(LogLine { level, message });
        } else {
            self.dropped += cost;
        }
    }

    /// Output of a guest with WASI, which comes in pieces.
    pub(super) fn output(&mut self, output: Output, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let open = &mut self.open[output as usize];
            let room = LINE_BYTES - open.len();
            let piece = &bytes[..bytes.len().min(room)];
            if let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
                open.extend_from_slice(&piece[..end]);
                bytes = &bytes[end + 1..];
                self.end_line(output);
            } else {
                open.extend_from_slice(piece);
                bytes = &bytes[piece.len()..];
                if piece.len() == room {
                    self.end_line(output);
                }
            }
        }
    }

    fn end_line(&mut self, output: Output) {
        let line = std::mem::take(&mut self.open[output as usize]);
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if !line.is_empty() {
            let level = match output {
                Output::Stdout => Level::INFO,
                Output::Stderr => Level::ERROR,
            };
            self.write(level, line);
        }
    }

    /// Ends lines that the guest did not end.
    pub(in super::super) fn close(&mut self) {
        for output in [Output::Stdout, Output::Stderr] {
            self.end_line(output);
        }
    }

    /// The panic's text if there was one, else the last error lines, in one line; empty if there were none.
    pub(in super::super) fn last_words(&self) -> &str {
        &self.last_words
    }

    fn remember(&mut self, line: &str) {
        // What the standard library adds to a panic helps nobody here.
        if line.starts_with("note: run with `RUST_BACKTRACE") {
            return;
        }
        // The SDK writes `panicked at …`, the standard library `thread 'main' panicked at …`.
        if line.starts_with("panicked at ")
            || (line.starts_with("thread '") && line.contains(" panicked at "))
        {
            self.panicked = true;
            self.last_words.clear();
        }
        for line in line.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if !self.last_words.is_empty() {
                self.last_words.push_str(if self.last_words.ends_with(':') { " " } else { "; " });
            }
            self.last_words.push_str(cut(line));
            // Of a panic the beginning counts, of other lines the end.
            if self.last_words.len() > LAST_WORDS_BYTES {
                let from = if self.panicked { 0 } else { self.last_words.len() - LAST_WORDS_BYTES };
                let from = self.last_words.ceil_char_boundary(from);
                self.last_words = cut(&self.last_words[from..]).to_owned();
            }
        }
    }
}

/// The beginning of a text, as long as last words may be.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LAST_WORDS_BYTES)]
}

/// A panic while the lock is held cannot leave a list of lines in disorder.
pub(super) fn lock(logs: &Mutex<Logs>) -> MutexGuard<'_, Logs> {
    logs.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[&str]) -> String {
        let mut logs = Logs::new(1 << 16, 1_000);
        for line in lines {
            logs.output(Output::Stderr, line.as_bytes());
        }
        logs.close();
        logs.last_words().to_owned()
    }

    #[test]
    fn logs_drop_and_count_what_is_over_the_limit() {
        let written = |bytes, lines| {
            let mut logs = Logs::new(bytes, lines);
            for message in ["12345", "123", "1", "", ""] {
                logs.write(Level::INFO, message.to_owned());
            }
            let kept: Vec<_> = logs.lines.iter().map(|line| line.message.clone()).collect();
            (kept.join(","), logs.dropped)
        };
        assert_eq!(written(10, 100), ("12345,123".to_owned(), 4));
        assert_eq!(written(100, 1), ("12345".to_owned(), 8));
    }

    #[test]
    fn last_words_survive_when_the_limit_is_used_up() {
        let mut logs = Logs::new(0, 0);
        logs.write(Level::ERROR, "panicked at src/lib.rs:1:1: no".to_owned());
        assert_eq!(logs.last_words(), "panicked at src/lib.rs:1:1: no");
    }

    #[test]
    fn last_words_are_the_panic_when_there_is_one() {
        let cases: &[(&[&str], &str)] = &[
            (&["one\n", "two\n"], "one; two"),
            (&["no end"], "no end"),
            (
                &[
                    "odd\n\nthread 'main' (1) panicked at src/lib.rs:10:5:\nsize must",
                    " be >= 1\nnote: run with `RUST_BACKTRACE=1` …\n",
                ],
                "thread 'main' (1) panicked at src/lib.rs:10:5: size must be >= 1",
            ),
            (&["a\n", "\u{e4}\n", "\n"], "a; \u{e4}"),
        ];
        for (lines, expected) in cases {
            assert_eq!(said(lines), *expected);
        }
    }

    #[test]
    fn last_words_are_cut_between_characters() {
        let long = "\u{e4}".repeat(700);
        for lines in
            [vec![long.as_str()], vec![long.as_str(), "\n", long.as_str()], vec!["panicked at x: ", &long]]
        {
            let words = said(&lines);
            assert!((990..=1_000).contains(&words.len()), "{}", words.len());
        }
        assert!(said(&["panicked at x: ", &long]).starts_with("panicked at x: "));
    }

    #[test]
    fn output_without_line_breaks_is_cut_into_lines() {
        let mut logs = Logs::new(1 << 16, 1_000);
        logs.output(Output::Stdout, &[b'x'; LINE_BYTES * 2 + 1]);
        logs.close();
        let lengths: Vec<_> = logs.lines.iter().map(|line| line.message.len()).collect();
        assert_eq!(lengths, [LINE_BYTES, LINE_BYTES, 1]);
    }
}

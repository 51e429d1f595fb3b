//! What happened, for people, and whether it was the same twice.

use crate::{
    api::{ETCD, FAULT, Record, text},
    simulation::{Note, Ran},
    world::HOST,
};
use std::{fmt::Write, time::Duration};

/// Every request and everything else, a line each: time, actor, what, outcome.
pub fn lines(ran: &Ran) -> Vec<String> {
    let mut lines = Vec::new();
    let mut notes = ran.notes.iter().peekable();
    for (number, record) in ran.records.iter().enumerate() {
        while let Some(note) = notes.next_if(|note| note.after <= number) {
            lines.push(note_line(note));
        }
        lines.push(line(record));
    }
    lines.extend(notes.map(note_line));
    lines
}

/// Without reads that were answered: writes, and what went wrong.
pub fn shortened(ran: &Ran) -> Vec<String> {
    let mut lines = Vec::new();
    let mut notes = ran.notes.iter().peekable();
    for (number, record) in ran.records.iter().enumerate() {
        while let Some(note) = notes.next_if(|note| note.after <= number) {
            lines.push(note_line(note));
        }
        let is_told = record.asked.writes() || (record.user == HOST && record.code != 200);
        if is_told {
            lines.push(line(record));
        }
    }
    lines.extend(notes.map(note_line));
    lines
}

fn note_line(note: &Note) -> String {
    format!("{} -- {}", time(note.at), note.text)
}

fn time(at: Duration) -> String {
    format!("{:>12.6}", at.as_secs_f64())
}

fn line(record: &Record) -> String {
    let asked = &record.asked;
    // kube's recorder names events after the time of the system.
    let target = if asked.resource == "events" { "events".to_owned() } else { asked.target() };
    let outcome = if record.code == FAULT { "a fault:".to_owned() } else { format!("-> {}", record.code) };
    let mut line = format!("{} {:8} {:7} {target} {outcome}", time(record.at), record.user, asked.verb);
    if asked.resource == "events" {
        for event in record.changes.iter().map(|change| change.object()) {
            let part = |pointer: &str| text(event, pointer).to_owned();
            let _ =
                write!(line, "; {} about {}: {}", part("/reason"), part("/regarding/name"), part("/note"));
        }
        return line;
    }
    if let Some(refused) = &record.refused {
        let _ = write!(line, " {refused}");
    }
    if record.user == ETCD {
        return line;
    }
    for change in &record.changes {
        let _ = match (&change.before, &change.after) {
            (None, Some(_)) => write!(line, "; created"),
            (Some(_), None) => write!(line, "; gone"),
            (before, after) => write!(line, "; {}", change_of(before.as_deref(), after.as_deref())),
        };
        let _ = write!(line, " @{}", change.version);
    }
    line
}

/// What a change is, in one word per part.
fn change_of(before: Option<&serde_json::Value>, after: Option<&serde_json::Value>) -> String {
    let (Some(before), Some(after)) = (before, after) else { return String::new() };
    let mut told = Vec::new();
    for (name, value) in after.as_object().into_iter().flatten() {
        if name == "metadata" {
            for (name, value) in value.as_object().into_iter().flatten() {
                let is_noise = matches!(&**name, "resourceVersion" | "managedFields" | "generation");
                if !is_noise && before["metadata"].get(name) != Some(value) {
                    told.push(name.clone());
                }
            }
        } else if before.get(name) != Some(value) {
            told.push(format!("{name} {value}"));
        }
    }
    told.join(", ")
}

/// Where two runs differ first; `None` if they do not.
pub(crate) fn difference(one: &Ran, other: &Ran) -> Option<String> {
    let content = |ran: &Ran| {
        let mut lines = lines(ran);
        for (record, at) in ran.records.iter().zip(0..) {
            if record.asked.resource != "events" && record.user != ETCD {
                let objects = record.changes.iter().filter_map(|change| change.after.as_ref());
                lines.extend(objects.map(|object| format!("content of request {at}: {object}")));
            }
        }
        lines
    };
    let (one, other) = (content(one), content(other));
    let at = one.iter().zip(&other).position(|(one, other)| one != other);
    let at = at.or((one.len() != other.len()).then_some(one.len().min(other.len())))?;
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "nothing".to_owned());
    Some(format!("{} | {}", line(&one), line(&other)))
}

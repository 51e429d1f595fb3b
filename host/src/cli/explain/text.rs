//! An explanation for people.

use crate::{
    cli::get::age,
    operate::explain::{Explanation, Next, NextWhen, Plugin, Reconcile, Written},
    plugins::source::short,
};
use jiff::Timestamp;
use std::fmt::Write as _;

/// All of it, in lines. Times are told by the clock of the host.
pub(super) fn of(explanation: &Explanation) -> String {
    let Explanation { object, plugins, .. } = explanation;
    let clock = Clock(explanation.now.parse().unwrap_or_else(|_| Timestamp::now()));
    let namespace = object.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
    let mut text = format!(
        "{} {namespace}{} ({}), generation {}\n",
        object.kind, object.name, object.api_version, object.generation
    );
    for (index, plugin) in plugins.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        clock.plugin(plugin, object.generation, &mut text);
    }
    text
}

/// The time of the answer.
struct Clock(Timestamp);

impl Clock {
    fn plugin(&self, plugin: &Plugin, generation: i64, text: &mut String) {
        let mut line = |name: &str, value: &str| {
            // Writing to a String cannot fail; nor below.
            let _ = writeln!(text, "{name:<15}{value}");
        };
        line("Plugin:", &format!("{}, version {} ({})", plugin.name, plugin.version, short(&plugin.digest)));
        if let Some(standing) = plugin.standing.as_ref().filter(|standing| standing.status != "True") {
            line("Not serving:", &format!("{}: {}", standing.reason, one_line(&standing.message)));
        }
        let told = |time: &Option<String>| {
            time.as_ref().map_or_else(
                || "not that this host knows of".to_owned(),
                |time| format!("{time}, {} ago", self.since(time)),
            )
        };
        line("Last checked:", &told(&plugin.checked));
        line("Last changed:", &told(&plugin.changed));
        line("Next:", &self.next(&plugin.next));
        let more = (plugin.more_reads > 0).then(|| format!("and {} more", plugin.more_reads));
        let reads: Vec<_> = plugin.reads.iter().chain(&more).collect();
        line("Reads:", reads.first().map_or("nothing but the object", |read| read));
        reads.iter().skip(1).for_each(|read| line("", read));
        line(
            "Reconciles:",
            if plugin.reconciles.is_empty() { "none that this host knows of" } else { "newest first" },
        );
        for reconcile in &plugin.reconciles {
            self.reconcile(reconcile, &plugin.digest, generation, text);
        }
    }

    fn next(&self, next: &Next) -> String {
        let at = next.at.as_deref().unwrap_or_default();
        match next.when {
            NextWhen::Now => "it is being reconciled".to_owned(),
            NextWhen::Due => {
                let since = self.since(at);
                format!("due since {since} by {}, waits for a worker", words(&next.triggers))
            }
            NextWhen::Requeue => format!("in {}, as the last pass asked, or on a change", self.until(at)),
            NextWhen::BackOff => {
                let failures = match next.failures {
                    1 => "a failure".to_owned(),
                    count => format!("{count} failures in a row"),
                };
                format!("in {}, after {failures}, or on a change", self.until(at))
            }
            NextWhen::OnChange => "when the object, a child, or something it reads changes".to_owned(),
        }
    }

    fn reconcile(&self, reconcile: &Reconcile, digest: &str, generation: i64, text: &mut String) {
        let Reconcile { passes, calls, .. } = *reconcile;
        let _ = write!(
            text,
            "  {} ago, took {}, by {}",
            self.since(&reconcile.last),
            took(reconcile.milliseconds),
            words(&reconcile.triggers)
        );
        if reconcile.attempt > 0 {
            let _ = write!(text, ", attempt {}", reconcile.attempt + 1);
        }
        if reconcile.generation != generation {
            let _ = write!(text, ", generation {}", reconcile.generation);
        }
        if reconcile.digest != digest {
            let _ = write!(text, ", version {}", short(&reconcile.digest));
        }
        let why = reconcile.why.as_deref().unwrap_or("for a reason not told");
        let _ = match (calls, passes) {
            (0, _) => writeln!(text, ": the memo answered"),
            (1, 1) => writeln!(text, ": guest called, {why}"),
            (_, _) => writeln!(text, ": guest called {calls} times, {why}"),
        };
        let mut lines: Vec<String> = [
            ("created", &reconcile.created),
            ("updated", &reconcile.updated),
            ("deleted to create anew", &reconcile.replaced),
            ("pruned", &reconcile.pruned),
        ]
        .into_iter()
        .filter(|(_, written)| written.total > 0)
        .map(|(what, written)| format!("{what} {}", named(written)))
        .collect();
        if reconcile.metadata_written {
            lines.push("wrote the object's labels, annotations or finalizers".to_owned());
        }
        if reconcile.status_written {
            lines.push("wrote its status".to_owned());
        }
        if let Some(failure) = &reconcile.failure {
            lines.push(format!("failed: {}: {}", failure.reason, one_line(&failure.message)));
        }
        if lines.is_empty() {
            lines.push("nothing to do".to_owned());
        }
        if passes > 1 {
            lines.push(format!("{passes} times since {} ago", self.since(&reconcile.first)));
        }
        for line in lines {
            let _ = writeln!(text, "    {line}");
        }
    }

    fn since(&self, time: &str) -> String {
        time.parse().map_or_else(|_| "some time".to_owned(), |time| age(time, self.0))
    }

    fn until(&self, time: &str) -> String {
        time.parse().map_or_else(|_| "some time".to_owned(), |time| age(self.0, time))
    }
}

fn named(written: &Written) -> String {
    let names = written.names.join(", ");
    match written.total.saturating_sub(written.names.len()) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

fn took(milliseconds: f64) -> String {
    if milliseconds < 1_000.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.1} s", milliseconds / 1_000.0)
    }
}

fn words(triggers: &[String]) -> String {
    triggers.join(", ").replace('_', " ")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn explanation() -> serde_json::Value {
        let pass = json!({
            "first": "2026-01-01T00:59:00Z", "last": "2026-01-01T00:59:00Z", "passes": 1, "calls": 1,
            "milliseconds": 12.34, "triggers": ["parent"], "generation": 3, "digest": "0123456789abcdef",
            "why": "the object changed",
        });
        let with = |more: serde_json::Value| {
            let mut pass = pass.clone();
            pass.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            pass
        };
        json!({
            "apiVersion": "oarlock.dev/v1alpha1", "kind": "Explanation", "now": "2026-01-01T01:00:00Z",
            "object": {
                "apiVersion": "demo.oarlock.dev/v1", "kind": "Website", "namespace": "demo", "name": "blog",
                "generation": 3,
            },
            "plugins": [
                {
                    "name": "website", "version": "1.2.0", "digest": "0123456789abcdef",
                    "standing": {"status": "True", "reason": "Active", "message": "serves"},
                    "checked": "2026-01-01T00:59:57Z", "changed": "2026-01-01T00:59:00Z",
                    "next": {"when": "Requeue", "at": "2026-01-01T01:02:00Z"},
                    "reads": ["get ConfigMap demo/settings", "children"], "moreReads": 900,
                    "reconciles": [
                        with(json!({
                            "first": "2026-01-01T00:59:10Z", "last": "2026-01-01T00:59:57Z", "passes": 12,
                            "calls": 0, "milliseconds": 0.4, "triggers": ["parent_status", "child"],
                        })),
                        with(json!({
                            "created": {"names": ["Deployment demo/blog"], "total": 1},
                            "replaced": {"names": ["Job demo/j"], "total": 1},
                            "pruned": {"names": ["Service demo/a", "Service demo/b"], "total": 20},
                            "metadataWritten": true, "statusWritten": true,
                        })),
                        with(json!({
                            "generation": 2, "digest": "fedcba9876543210", "attempt": 2, "milliseconds": 5000.0,
                            "passes": 3, "calls": 3, "first": "2026-01-01T00:58:00Z",
                            "failure": {"reason": "GuestFailed", "message": "no\nmore"},
                        })),
                    ],
                },
                {
                    "name": "labels", "version": "0.1.0", "digest": "aa",
                    "standing": {"status": "False", "reason": "Paused", "message": "switched off by spec.paused"},
                    "next": {"when": "OnChange"}, "reads": [], "reconciles": [],
                },
            ],
        })
    }

    #[test]
    fn explanation_is_told_in_lines() {
        let expected = "\
Website demo/blog (demo.oarlock.dev/v1), generation 3
Plugin:        website, version 1.2.0 (0123456789ab)
Last checked:  2026-01-01T00:59:57Z, 3s ago
Last changed:  2026-01-01T00:59:00Z, 60s ago
Next:          in 2m, as the last pass asked, or on a change
Reads:         get ConfigMap demo/settings
               children
               and 900 more
Reconciles:    newest first
  3s ago, took 0.4 ms, by parent status, child: the memo answered
    nothing to do
    12 times since 50s ago
  60s ago, took 12.3 ms, by parent: guest called, the object changed
    created Deployment demo/blog
    deleted to create anew Job demo/j
    pruned Service demo/a, Service demo/b and 18 more
    wrote the object's labels, annotations or finalizers
    wrote its status
  60s ago, took 5.0 s, by parent, attempt 3, generation 2, version fedcba987654: guest called 3 times, the object changed
    failed: GuestFailed: no more
    3 times since 2m ago

Plugin:        labels, version 0.1.0 (aa)
Not serving:   Paused: switched off by spec.paused
Last checked:  not that this host knows of
Last changed:  not that this host knows of
Next:          when the object, a child, or something it reads changes
Reads:         nothing but the object
Reconciles:    none that this host knows of
";
        assert_eq!(of(&serde_json::from_value(explanation()).unwrap()), expected);
    }

    #[test]
    fn next_is_told_for_each_state() {
        let clock = Clock("2026-01-01T01:00:00Z".parse().unwrap());
        let at = Some("2026-01-01T01:00:04Z".to_owned());
        let next = |when, at: &Option<String>, failures| {
            clock.next(&Next {
                when,
                at: at.clone(),
                triggers: vec!["child".to_owned(), "read".to_owned()],
                failures,
            })
        };
        assert_eq!(next(NextWhen::Now, &None, 0), "it is being reconciled");
        let since = Some("2026-01-01T00:59:58Z".to_owned());
        assert_eq!(next(NextWhen::Due, &since, 0), "due since 2s by child, read, waits for a worker");
        assert_eq!(next(NextWhen::BackOff, &at, 1), "in 4s, after a failure, or on a change");
        assert_eq!(next(NextWhen::BackOff, &at, 7), "in 4s, after 7 failures in a row, or on a change");
        assert_eq!(next(NextWhen::Requeue, &None, 0), "in some time, as the last pass asked, or on a change");
    }
}

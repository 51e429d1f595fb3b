use super::*;
use crate::{
    object::{Gvk, ObjectKey},
    observe::client::{self, Scope},
    report::{Fault, Outcome, Reason, Seen},
};
use std::collections::BTreeSet;

fn widget(name: &str) -> ObjectKey {
    ObjectKey {
        gvk: Gvk::new("demo.example.com/v1", "Widget"),
        namespace: Some("demo".into()),
        name: name.into(),
    }
}

fn watch(namespace: Option<&str>) -> WatchKey {
    let scope = Scope { namespace: namespace.map(Into::into), label_selector: None };
    WatchKey { gvk: Gvk::new("v1", "Pod"), scope }
}

/// The samples of a family that are not zero, without comments, buckets and sums.
fn samples(metrics: &Metrics, prefix: &str) -> Vec<String> {
    let text = metrics.render(&BTreeMap::from([("website".into(), (3, 1))]));
    let mut samples: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with(prefix) && !line.contains("_bucket{") && !line.contains("_sum"))
        .filter(|line| !line.ends_with(" 0"))
        .map(ToOwned::to_owned)
        .collect();
    samples.sort();
    samples
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn status_error(answer: Answer) -> client::Error {
    client::Error {
        verb: "patch",
        target: "the status of demo".to_owned(),
        answer,
        message: "secret".to_owned(),
        retry_after: None,
    }
}

fn written(result: Result<StatusWrite, client::Error>) -> Written {
    Written { result, conflicts: 0, refusals: 0, refusal: None, shortfalls: Vec::new() }
}

fn used() -> Metrics {
    let metrics = Metrics::new();
    metrics.plugin_active("website", "1.0", "aa", &Limits::STANDARD);
    use_metrics(&metrics);
    metrics
}

/// Counts something of everything, for the plugin where it is about one.
fn use_metrics(metrics: &Metrics) {
    metrics.memo("website", true);
    metrics.plan_limited("website");
    let one =
        Trace { fuel: 7, memory: 9, output: 3, duration: Duration::from_millis(500), ..Trace::default() };
    metrics.guest_call("website", &one);
    for (result, conflicts, refusals) in [
        (Ok(StatusWrite::Written), 2, 0),
        (Ok(StatusWrite::Written), 0, 1),
        (Ok(StatusWrite::Deferred), 0, 0),
        (Ok(StatusWrite::LeftAlone), 0, 0),
        (Ok(StatusWrite::Failed), 0, 1),
        (Err(status_error(Answer::Timeout)), 1, 0),
    ] {
        metrics.status("website", &Written { conflicts, refusals, ..written(result) });
    }
    metrics.panicked("website");
    metrics.waited("website", Duration::ZERO);
    metrics.plugin_swapped(Duration::from_secs(1));
    metrics.applied(
        "website",
        &Applied { created: vec![widget("a"), widget("b")], unchanged: 3, ..Applied::default() },
    );
    // A pass that found nothing to look at is no success.
    let report = Report::new(&"website".into(), &widget("gone"));
    metrics.reconciled(&report, Duration::ZERO, at(3_000));
    for (outcome, failure) in [
        (Outcome::Done, None),
        (Outcome::Wait, Some(Reason::GuestTrapped)),
        (Outcome::Retry { fault: Fault::Api, not_before: None }, Some(Reason::ApiUnavailable)),
    ] {
        let failure = failure.map(|reason| (reason, "secret".to_owned()));
        let pruned = vec![widget("c")];
        let seen = Some(Seen { uid: "u".into(), generation: 1, digest: "aa".into() });
        let report =
            Report { seen, pruned, failure, outcome, ..Report::new(&"website".into(), &widget("w")) };
        metrics.reconciled(
            &report,
            Duration::from_millis(2),
            at(if report.failure.is_none() { 1_000 } else { 2_000 }),
        );
    }
    metrics.api_request("patch", Ok(()));
    metrics.api_request("patch", Err(&Answer::FieldConflict(vec![("spec.secret".into(), "who".into())])));
    metrics.watches_counted(&[(watch(None), opened(2))]);
}

fn opened(watches: u64) -> Counts {
    Counts { watches, ..Counts::default() }
}

#[test]
fn restarts_of_watches_are_counted_over_scrapes_and_never_go_back() {
    let metrics = Metrics::new();
    for (opened_so_far, restarts) in [(1, 0), (3, 2), (2, 2), (4, 3)] {
        metrics.watches_counted(&[(watch(None), opened(opened_so_far))]);
        let text = metrics.render(&BTreeMap::new());
        let line = format!("oarlock_watch_restarts_total{{kind=\"Pod (v1)\"}} {restarts}");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn families_carry_what_was_counted() {
    let metrics = used();
    for (prefix, expected) in [
        (
            "oarlock_reconcile_total",
            &[
                r#"oarlock_reconcile_total{plugin="website",result="done"} 1"#,
                r#"oarlock_reconcile_total{plugin="website",result="panic"} 1"#,
                r#"oarlock_reconcile_total{plugin="website",result="retry_api"} 1"#,
                r#"oarlock_reconcile_total{plugin="website",result="wait"} 2"#,
            ][..],
        ),
        (
            "oarlock_reconcile_duration_seconds",
            &[r#"oarlock_reconcile_duration_seconds_count{plugin="website"} 4"#],
        ),
        ("oarlock_last_success", &[r#"oarlock_last_success_timestamp_seconds{plugin="website"} 1000"#]),
        (
            "oarlock_guest_call_duration_seconds",
            &[r#"oarlock_guest_call_duration_seconds_count{plugin="website"} 1"#],
        ),
        ("oarlock_guest_fuel", &[r#"oarlock_guest_fuel_total{plugin="website"} 7"#]),
        (
            "oarlock_guest_peak",
            &[
                r#"oarlock_guest_peak{plugin="website",use="fuel"} 7.0"#,
                r#"oarlock_guest_peak{plugin="website",use="memory_bytes"} 9.0"#,
                r#"oarlock_guest_peak{plugin="website",use="output_bytes"} 3.0"#,
                r#"oarlock_guest_peak{plugin="website",use="seconds"} 0.5"#,
            ],
        ),
        (
            "oarlock_guest_limit",
            &[
                r#"oarlock_guest_limit{plugin="website",use="fuel"} 2000000000.0"#,
                r#"oarlock_guest_limit{plugin="website",use="memory_bytes"} 67108864.0"#,
                r#"oarlock_guest_limit{plugin="website",use="output_bytes"} 8388608.0"#,
                r#"oarlock_guest_limit{plugin="website",use="seconds"} 5.0"#,
            ],
        ),
        (
            "oarlock_guest_fail",
            &[r#"oarlock_guest_failures_total{plugin="website",reason="GuestTrapped"} 1"#],
        ),
        ("oarlock_memo", &[r#"oarlock_memo_total{plugin="website",result="hit"} 1"#]),
        ("oarlock_plans_limited", &[r#"oarlock_plans_limited_total{plugin="website"} 1"#]),
        (
            "oarlock_queue_depth",
            &[
                r#"oarlock_queue_depth{plugin="website",state="delayed"} 1"#,
                r#"oarlock_queue_depth{plugin="website",state="due"} 3"#,
            ],
        ),
        ("oarlock_queue_wait_seconds", &[r#"oarlock_queue_wait_seconds_count{plugin="website"} 1"#]),
        (
            "oarlock_apply",
            &[
                r#"oarlock_apply_total{plugin="website",result="created"} 2"#,
                r#"oarlock_apply_total{plugin="website",result="pruned"} 3"#,
                r#"oarlock_apply_total{plugin="website",result="unchanged"} 3"#,
            ],
        ),
        (
            "oarlock_status_writes",
            &[
                r#"oarlock_status_writes_total{plugin="website",result="deferred"} 1"#,
                r#"oarlock_status_writes_total{plugin="website",result="failed"} 2"#,
                r#"oarlock_status_writes_total{plugin="website",result="written"} 2"#,
            ],
        ),
        ("oarlock_status_conflicts", &[r#"oarlock_status_conflicts_total{plugin="website"} 3"#]),
        ("oarlock_watch_restarts", &[r#"oarlock_watch_restarts_total{kind="Pod (v1)"} 1"#]),
        ("oarlock_plugin_info", &[r#"oarlock_plugin_info{plugin="website",version="1.0",digest="aa"} 1"#]),
        ("oarlock_plugin_swap_seconds", &["oarlock_plugin_swap_seconds_count 1"]),
        (
            "oarlock_api_requests",
            &[
                r#"oarlock_api_requests_total{verb="patch",result="field_conflict"} 1"#,
                r#"oarlock_api_requests_total{verb="patch",result="ok"} 1"#,
            ],
        ),
        ("oarlock_build", &[concat!("oarlock_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1")]),
    ] {
        assert_eq!(samples(&metrics, prefix), expected, "{prefix}");
    }
    let text = metrics.render(&BTreeMap::new());
    assert!(!text.contains("secret") && !text.contains("demo"), "{text}");
}

#[test]
fn series_of_a_plugin_go_with_it_and_those_of_its_old_versions_before() {
    let metrics = used();
    metrics.plugin_active("website", "2.0", "bb", &Limits::STANDARD);
    let info = [r#"oarlock_plugin_info{plugin="website",version="2.0",digest="bb"} 1"#];
    assert_eq!(samples(&metrics, "oarlock_plugin_info"), info);
    let peak = || samples(&metrics, r#"oarlock_guest_peak{plugin="website",use="fuel"#);
    assert_eq!(peak(), [r#"oarlock_guest_peak{plugin="website",use="fuel"} 0.0"#], "another version");
    let small = Trace { fuel: 2, ..Trace::default() };
    for trace in [&small, &Trace::default()] {
        metrics.guest_call("website", trace);
    }
    assert_eq!(peak(), [r#"oarlock_guest_peak{plugin="website",use="fuel"} 2.0"#]);
    metrics.plugin_inactive("website");
    assert!(!metrics.render(&BTreeMap::new()).contains("website"));
    // What was in flight ends later.
    use_metrics(&metrics);
    assert!(!metrics.render(&BTreeMap::new()).contains("website"));
}

#[test]
fn failures_of_statuses_are_counted_by_answer() {
    let expected = [
        r#"oarlock_status_update_failures_total{plugin="website",reason="invalid"} 2"#,
        r#"oarlock_status_update_failures_total{plugin="website",reason="timeout"} 1"#,
    ];
    assert_eq!(samples(&used(), "oarlock_status_update_failures"), expected);
}

#[test]
fn watches_are_counted_by_kind_and_state() {
    let metrics = Metrics::new();
    let all = |of: &[(&str, u32)]| -> Vec<String> {
        of.iter()
            .map(|(state, n)| format!("oarlock_watch_state{{kind=\"Pod (v1)\",state=\"{state}\"}} {n}"))
            .collect()
    };
    metrics.watch_state(&watch(None), &WatchState::Listing);
    metrics.watch_state(&watch(None), &WatchState::Live);
    metrics.watch_state(&watch(Some("demo")), &WatchState::Live);
    assert_eq!(samples(&metrics, "oarlock_watch_state"), all(&[("live", 2)]));
    metrics.watch_state(&watch(Some("demo")), &WatchState::Forbidden("why".into()));
    assert_eq!(samples(&metrics, "oarlock_watch_state"), all(&[("forbidden", 1), ("live", 1)]));
    metrics.watch_gone(&watch(None));
    metrics.watches_counted(&[(watch(Some("demo")), opened(2))]);
    metrics.watch_gone(&watch(Some("demo")));
    assert!(!metrics.render(&BTreeMap::new()).contains("Pod"));
}

/// The names and labels of all series.
fn series(metrics: &Metrics) -> BTreeSet<String> {
    let text = metrics.render(&BTreeMap::new());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[test]
fn every_series_exists_before_there_is_something_to_count() {
    let metrics = Metrics::new();
    metrics.plugin_active("website", "1.0", "aa", &Limits::STANDARD);
    metrics.watch_state(&watch(None), &WatchState::Listing);
    let start = series(&metrics);
    let expected = [
        r#"oarlock_reconcile_total{plugin="website",result="retry_conflict"}"#,
        r#"oarlock_last_success_timestamp_seconds{plugin="website"}"#,
        r#"oarlock_guest_failures_total{plugin="website",reason="FuelExhausted"}"#,
        r#"oarlock_queue_depth{plugin="website",state="due"}"#,
        r#"oarlock_watch_state{kind="Pod (v1)",state="forbidden"}"#,
        r#"oarlock_watch_restarts_total{kind="Pod (v1)"}"#,
        r#"oarlock_api_requests_total{verb="watch",result="expired"}"#,
        "oarlock_plugin_swap_seconds_count",
    ];
    for expected in expected {
        assert!(start.contains(expected), "{expected} is not among {start:#?}");
    }

    let report = Report::new(&"website".into(), &widget("w"));
    let reconciled = |report: &Report| metrics.reconciled(report, Duration::ZERO, at(1));
    let retry = |fault| Outcome::Retry { fault, not_before: None };
    for outcome in
        [Outcome::Done, Outcome::Wait, retry(Fault::Api), retry(Fault::Plugin), retry(Fault::Conflict)]
    {
        reconciled(&Report { outcome, pruned: vec![widget("a")], ..report.clone() });
    }
    for reason in Reason::ALL {
        reconciled(&Report { failure: Some((*reason, String::new())), ..report.clone() });
    }
    let keys = || vec![widget("a")];
    let applied = Applied { created: keys(), updated: keys(), unchanged: 1, ..Applied::default() };
    metrics.applied("website", &applied);
    metrics.panicked("website");
    metrics.memo("website", true);
    metrics.memo("website", false);
    metrics.guest_call("website", &Trace::default());
    metrics.waited("website", Duration::ZERO);
    metrics.plan_limited("website");
    for result in [StatusWrite::Written, StatusWrite::Unchanged, StatusWrite::Deferred, StatusWrite::Failed] {
        metrics.status("website", &written(Ok(result)));
    }
    for answer in answers() {
        metrics.status("website", &written(Err(status_error(answer))));
    }
    for state in [
        WatchState::Live,
        WatchState::Missing("why".into()),
        WatchState::Forbidden("why".into()),
        WatchState::Failing("why".into()),
    ] {
        metrics.watch_state(&watch(None), &state);
    }
    for verb in VERBS {
        metrics.api_request(verb, Ok(()));
        for answer in answers() {
            metrics.api_request(verb, Err(&answer));
        }
    }
    metrics.watches_counted(&[(watch(None), opened(2))]);
    assert_eq!(series(&metrics), start);
}

/// Every row of the table.
fn answers() -> Vec<Answer> {
    let rows = vec![
        Answer::VersionConflict,
        Answer::UidMismatch,
        Answer::FieldConflict(Vec::new()),
        Answer::AlreadyExists,
        Answer::Unauthorized,
        Answer::Forbidden,
        Answer::QuotaExceeded,
        Answer::Denied,
        Answer::NamespaceTerminating,
        Answer::NotFound,
        Answer::KindNotFound,
        Answer::Expired,
        Answer::Invalid(Vec::new()),
        Answer::TooLarge,
        Answer::TooManyRequests,
        Answer::Unavailable,
        Answer::Timeout,
        Answer::Connection,
        Answer::Undecodable,
        Answer::GateClosed,
    ];
    assert_eq!(rows.iter().map(Answer::as_str).collect::<Vec<_>>(), ANSWERS);
    rows
}

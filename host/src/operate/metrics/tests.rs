use super::*;
use crate::{
    object::{Gvk, ObjectKey},
    observe::client::Scope,
    report::{Fault, Outcome},
};

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

/// The samples of a family, without comments, buckets and sums.
fn samples(metrics: &Metrics, prefix: &str) -> Vec<String> {
    let text = metrics.render(&BTreeMap::from([("website".into(), (3, 1))]));
    let mut samples: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with(prefix) && !line.contains("_bucket{") && !line.contains("_sum"))
        .map(ToOwned::to_owned)
        .collect();
    samples.sort();
    samples
}

fn used() -> Metrics {
    let metrics = Metrics::new();
    metrics.plugin_active("website", "1.0", "aa");
    metrics.memo("website", true);
    metrics.guest_call("website", Duration::from_millis(1), 7);
    metrics.status_written("website");
    metrics.panicked("website");
    metrics.waited(Duration::ZERO);
    metrics.plugin_swapped(Duration::from_secs(1));
    metrics.applied(
        "website",
        &Applied { created: vec![widget("a"), widget("b")], unchanged: 3, ..Applied::default() },
    );
    for (outcome, failure) in [
        (Outcome::Done { requeue_after: None }, None),
        (Outcome::Wait, Some(Reason::GuestTrapped)),
        (Outcome::Retry { fault: Fault::Api, not_before: None }, Some(Reason::ApiUnavailable)),
    ] {
        let failure = failure.map(|reason| (reason, "secret".to_owned()));
        let pruned = vec![widget("c")];
        let report = Report { pruned, failure, outcome, ..Report::new(&"website".into(), &widget("w")) };
        metrics.reconciled(&report, Duration::from_millis(2));
    }
    metrics.api_request("patch", Ok(()));
    metrics.api_request("patch", Err(&Answer::FieldConflict(vec![("spec.secret".into(), "who".into())])));
    metrics.watches_counted(&[(watch(None), opened(2))]);
    metrics
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
                r#"oarlock_reconcile_total{plugin="website",result="wait"} 1"#,
            ][..],
        ),
        ("oarlock_reconcile_duration_seconds", &["oarlock_reconcile_duration_seconds_count 3"]),
        (
            "oarlock_guest_call_duration_seconds",
            &[r#"oarlock_guest_call_duration_seconds_count{plugin="website"} 1"#],
        ),
        ("oarlock_guest_fuel", &[r#"oarlock_guest_fuel_total{plugin="website"} 7"#]),
        (
            "oarlock_guest_fail",
            &[r#"oarlock_guest_failures_total{plugin="website",reason="GuestTrapped"} 1"#],
        ),
        ("oarlock_memo", &[r#"oarlock_memo_total{plugin="website",result="hit"} 1"#]),
        (
            "oarlock_queue_depth",
            &[
                r#"oarlock_queue_depth{plugin="website",state="delayed"} 1"#,
                r#"oarlock_queue_depth{plugin="website",state="due"} 3"#,
            ],
        ),
        ("oarlock_queue_wait_seconds", &["oarlock_queue_wait_seconds_count 1"]),
        (
            "oarlock_apply",
            &[
                r#"oarlock_apply_total{plugin="website",result="created"} 2"#,
                r#"oarlock_apply_total{plugin="website",result="pruned"} 3"#,
                r#"oarlock_apply_total{plugin="website",result="unchanged"} 3"#,
            ],
        ),
        ("oarlock_status_writes", &[r#"oarlock_status_writes_total{plugin="website"} 1"#]),
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
    metrics.plugin_active("website", "2.0", "bb");
    let info = [r#"oarlock_plugin_info{plugin="website",version="2.0",digest="bb"} 1"#];
    assert_eq!(samples(&metrics, "oarlock_plugin_info"), info);
    metrics.plugin_inactive("website");
    assert!(!metrics.render(&BTreeMap::new()).contains("website"));
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
    assert_eq!(samples(&metrics, "oarlock_watch_state"), all(&[("listing", 0), ("live", 2)]));
    metrics.watch_state(&watch(Some("demo")), &WatchState::Forbidden("why".into()));
    assert_eq!(
        samples(&metrics, "oarlock_watch_state"),
        all(&[("forbidden", 1), ("listing", 0), ("live", 1)])
    );
    metrics.watch_gone(&watch(None));
    metrics.watches_counted(&[(watch(Some("demo")), opened(2))]);
    metrics.watch_gone(&watch(Some("demo")));
    assert!(!metrics.render(&BTreeMap::new()).contains("Pod"));
}

#[test]
fn every_result_of_a_reconcile_is_in_the_list_that_is_removed_with_a_plugin() {
    let retry = |fault| Outcome::Retry { fault, not_before: None };
    for outcome in [
        Outcome::Done { requeue_after: None },
        Outcome::Wait,
        retry(Fault::Api),
        retry(Fault::Plugin),
        retry(Fault::Conflict),
    ] {
        assert!(RECONCILE_RESULTS.contains(&reconcile_result(outcome)));
    }
}

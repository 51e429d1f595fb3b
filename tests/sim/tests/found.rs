//! What the simulator has found, each as the steps that are left of its seed: it does not happen any more.

#![expect(clippy::unwrap_used, reason = "a test may panic, and its message is what it is for")]

use oarlock_sim::{
    examine::examine,
    faults::{Crash, Fault, Rule},
    scenario::{Action, Hand, PLAIN, READS, SCRIPTED, SOURCE, Scenario, Step},
    simulation::Setting,
};
use serde_json::{Value, json};
use std::{path::PathBuf, sync::LazyLock, time::Duration};

static SETTING: LazyLock<Setting> = LazyLock::new(|| Setting::new(&cache_dir()).unwrap());

fn cache_dir() -> PathBuf {
    std::env::var("OARLOCK_SIM_CACHE")
        .map_or_else(|_| std::env::temp_dir().join("oarlock-sim"), PathBuf::from)
}

/// A step so many milliseconds after the one before.
fn after(milliseconds: u64, action: Action) -> Step {
    Step { after: Duration::from_millis(milliseconds), action }
}

fn edit(parent: &'static str, spec: Value) -> Action {
    Action::Edit { parent, spec }
}

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

fn script(children: &[Value], text: &str) -> Value {
    json!({"plan": {"children": children, "status": {"note": text}}})
}

fn reads(text: &str) -> Value {
    json!({"mode": "reads", "read": SOURCE, "selector": "pick=yes", "text": text})
}

/// Fails with what the run of these steps does wrong.
#[track_caller]
fn check(seed: u64, steps: Vec<Step>) {
    let ran = examine(&SETTING, &Scenario { seed, steps, is_paced: false }).unwrap();
    if let Some(failure) = &ran.failure {
        panic!("{failure}\n{}", oarlock_sim::trace::shortened(&ran).join("\n"));
    }
}

#[test]
fn seed_1133_a_history_that_goes_back_under_all_watches_at_once_is_planned_again() {
    check(
        1133,
        vec![
            after(0, edit(READS, reads("t3"))),
            after(0, Action::Backup),
            after(0, Action::Crash(Crash::After(2))),
            after(0, Action::Source { text: Some("t11".into()) }),
            after(16_814, edit(READS, reads("t13"))),
            after(0, Action::Restore),
        ],
    );
}

#[test]
fn seed_2421_a_history_whose_versions_are_given_out_again_before_anybody_looks_is_noticed_by_the_audit() {
    let [name, _] = SCRIPTED;
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("{name}-job"), "annotations": {"text": "t11"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "j", "image": "j"}]}}},
    });
    let first = config_map(&format!("{name}-0"), "t8");
    let second = config_map(&format!("{name}-0"), "t11");
    check(
        2421,
        vec![
            after(0, edit(name, script(&[first], "t8"))),
            after(384, edit(name, script(&[second, job], "t11"))),
            after(0, Action::Backup),
            after(37, Action::Restore),
        ],
    );
}

#[test]
fn seed_22256_a_child_whose_owner_is_taken_off_while_it_goes_is_made_again_once_it_is_gone() {
    let child =
        |hand| Action::Child { resource: "configmaps", name: format!("{PLAIN}-cm"), hand, text: "t8".into() };
    check(
        22256,
        vec![
            after(0, edit(PLAIN, json!({"mode": "normal", "text": "t3"}))),
            after(74, child(Hand::Hold)),
            after(0, child(Hand::Disown)),
            after(107_000, Action::Mend),
        ],
    );
}

/// F09: an API server that lags behind answers with what was, and nothing is deleted on that.
#[test]
fn an_old_list_at_a_restart_deletes_nothing_that_is_planned_now() {
    let [name, _] = SCRIPTED;
    let both = [config_map(&format!("{name}-0"), "t1"), config_map(&format!("{name}-1"), "t1")];
    let stale = Rule { verbs: &["list", "get"], ..Rule::every(Fault::Stale) };
    check(
        9,
        vec![
            after(0, edit(name, script(&both[..1], "t0"))),
            after(2_000, Action::Inject(stale)),
            after(0, Action::Kill { turns: 0 }),
            after(5_000, edit(name, script(&both, "t1"))),
            after(5_000, Action::Kill { turns: 3 }),
            after(20_000, Action::Mend),
        ],
    );
}

/// F08: what comes twice, or in another order, is known already.
#[test]
fn events_that_come_twice_and_in_another_order_do_no_harm() {
    let [name, other] = SCRIPTED;
    let mut steps = vec![
        after(0, Action::Inject(Rule::every(Fault::Duplicate(50)))),
        after(0, Action::Inject(Rule::every(Fault::Reorder(50)))),
    ];
    for number in 0..20_u64 {
        let text = format!("t{number}");
        let child = config_map(&format!("{name}-{}", number % 3), &text);
        steps.push(after(300, edit(name, script(&[child], &text))));
        steps.push(after(10, edit(other, script(&[config_map(&format!("{other}-0"), &text)], &text))));
        let resource = "configmaps";
        let hand = if number % 4 == 0 { Hand::Delete } else { Hand::Edit };
        steps.push(after(50, Action::Child { resource, name: format!("{other}-0"), hand, text }));
    }
    check(8, steps);
}

/// F02, F18: a watch that is silent, or loses events without a word, is noticed and repaired.
#[test]
fn silent_watches_and_lost_events_are_made_good_while_the_fault_lasts() {
    let [name, _] = SCRIPTED;
    for fault in [Fault::Freeze, Fault::Lose(100)] {
        let every = Rule { resource: "widgets", times: Some(1), ..Rule::every(fault) };
        check(
            18,
            vec![
                after(0, edit(name, script(&[config_map(&format!("{name}-0"), "t0")], "t0"))),
                after(5_000, Action::Inject(every)),
                after(100, edit(name, script(&[config_map(&format!("{name}-1"), "t1")], "t1"))),
                after(900_000, Action::Mend),
            ],
        );
    }
}

/// F11: a list that is answered with nothing is believed, but what is planned is found in place when it is applied.
#[test]
fn an_empty_list_at_a_restart_makes_and_deletes_nothing() {
    let [name, _] = SCRIPTED;
    let child = config_map(&format!("{name}-0"), "t0");
    let empty = Rule { resource: "configmaps", namespace: None, ..Rule::every(Fault::Empty) };
    let steps = vec![
        after(0, edit(name, script(&[child], "t0"))),
        after(5_000, Action::Inject(empty)),
        after(0, Action::Kill { turns: 0 }),
        after(60_000, Action::Mend),
    ];
    let scenario = Scenario { seed: 11, steps, is_paced: false };
    let ran = examine(&SETTING, &scenario).unwrap();
    assert!(ran.failure.is_none(), "{}", ran.failure.unwrap());
    let counts = oarlock_sim::examine::counts(&ran.records);
    assert_eq!(counts[&("configmaps".to_owned(), format!("{name}-0"))], (1, 0));
}

use super::*;
use crate::{
    object::Gvk,
    report::{Reason, Trigger},
};

fn kind(api_version: &str, kind: &str, plural: &str) -> Kind {
    Kind { gvk: Gvk::new(api_version, kind), plural: plural.to_owned(), namespaced: true, status: None }
}

#[test]
fn kind_is_understood_as_kubectl_understands_it() {
    let website = kind("demo.oarlock.dev/v1", "Website", "websites");
    for (word, expected) in [
        ("website", true),
        ("Website", true),
        ("WEBSITES", true),
        ("websites.demo.oarlock.dev", true),
        ("website.demo.oarlock.dev", true),
        ("websites.v1.demo.oarlock.dev", true),
        ("websites.v2.demo.oarlock.dev", false),
        ("websites.oarlock.dev", false),
        ("websites.", false),
        ("websitess", false),
        ("web", false),
        ("", false),
    ] {
        assert_eq!(is_called(&website, word), expected, "{word:?}");
    }
    let map = kind("v1", "ConfigMap", "configmaps");
    assert!(is_called(&map, "configmap") && !is_called(&map, "configmap.apps"));
}

#[test]
fn next_is_told_in_the_time_of_the_wall() {
    let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
    let secs = Duration::from_secs;
    let look = |waits| Some(Look { waits, triggers: BTreeSet::from([Trigger::Child]), failures: 2 });
    for (look, when, at) in [
        (None, NextWhen::OnChange, None),
        (look(Waits::Result), NextWhen::Now, None),
        (look(Waits::Worker { since: secs(99) }), NextWhen::Due, Some("2026-01-01T00:00:09.000Z")),
        (look(Waits::Requeue { until: secs(130) }), NextWhen::Requeue, Some("2026-01-01T00:00:40.000Z")),
        (look(Waits::BackOff { until: secs(101) }), NextWhen::BackOff, Some("2026-01-01T00:00:11.000Z")),
        (look(Waits::Requeue { until: Duration::MAX }), NextWhen::Requeue, None),
    ] {
        let is_at_rest = look.is_none();
        let next = next(look, secs(100), now);
        assert_eq!((next.when, next.at.as_deref()), (when, at));
        let expected = if is_at_rest { (0, vec![]) } else { (2, vec!["child".to_owned()]) };
        assert_eq!((next.failures, next.triggers), expected);
    }
}

#[test]
fn standing_is_the_condition_ready_of_a_plugin() {
    let plugin = |status: serde_json::Value| {
        let object = serde_json::json!({"metadata": {"name": "website", "uid": "u"}, "status": status});
        object::Object::decode(&Gvk::new("oarlock.dev/v1alpha1", "Plugin"), &object.to_string()).unwrap()
    };
    let said = plugin(serde_json::json!({"kinds": ["v1 Pod"], "conditions": [
        {"type": "Loaded", "status": "True", "reason": "Active", "message": "holds"},
        {"type": "Ready", "status": "False", "reason": "Paused", "message": "off", "observedGeneration": 1},
    ]}));
    let expected = Standing { status: "False".into(), reason: "Paused".into(), message: "off".into() };
    assert_eq!(answer::standing(&said), Some(expected));
    assert_eq!(answer::standing(&plugin(serde_json::json!({}))), None);
}

#[test]
fn entry_goes_over_the_wire_and_back() {
    use crate::operate::journal::{Entry, Names, Wrote};
    let began: Timestamp = "2026-01-01T00:00:10.25Z".parse().unwrap();
    let names = Names { shown: Box::new(["ConfigMap demo/a".into()]), total: 9 };
    let entry = Entry {
        first: began,
        last: began,
        passes: 1,
        calls: 1,
        took: Duration::from_micros(1_500),
        triggers: BTreeSet::from([Trigger::Parent]),
        attempt: 0,
        generation: 3,
        digest: "aa".into(),
        why: Some("first".into()),
        wrote: Some(Box::new(Wrote { created: names, status: true, ..Wrote::default() })),
        failure: Some((Reason::ChildInvalid, "no".into())),
    };
    let told = Reconcile::from(entry);
    let wire = serde_json::to_value(&told).unwrap();
    assert_eq!(serde_json::from_value::<Reconcile>(wire.clone()).unwrap(), told);
    let none = serde_json::json!({"names": [], "total": 0});
    let expected = serde_json::json!({
        "first": "2026-01-01T00:00:10.250Z", "last": "2026-01-01T00:00:10.250Z", "passes": 1, "calls": 1,
        "milliseconds": 1.5, "triggers": ["parent"], "attempt": 0, "generation": 3, "digest": "aa",
        "why": "first", "created": {"names": ["ConfigMap demo/a"], "total": 9}, "updated": none, "replaced": none, "pruned": none,
        "metadataWritten": false, "statusWritten": true,
        "failure": {"reason": "ChildInvalid", "message": "no"},
    });
    assert_eq!(wire, expected);
}

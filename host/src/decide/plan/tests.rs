use super::*;
use crate::manifest::Permissions;
use crate::observe::{client::Scope, watch::WatchKey};
use serde_json::json;

const KINDS: [(&str, &str, bool); 12] = [
    ("v1", "ConfigMap", true),
    ("v1", "Namespace", false),
    ("v1", "Pod", true),
    ("v1", "Secret", true),
    ("v1", "Service", true),
    ("v1", "ServiceAccount", true),
    ("v1", "PersistentVolumeClaim", true),
    ("apps/v1", "Deployment", true),
    ("apps/v1beta1", "Deployment", true),
    ("networking.k8s.io/v1", "Ingress", true),
    ("cases.example.com/v1", "Widget", true),
    // Of an earlier version of the plugin: watched, not declared.
    ("batch/v1", "Job", true),
];

fn manifest(status: bool) -> Manifest {
    let children: Vec<_> = KINDS
        .iter()
        .filter(|(_, kind, _)| *kind != "Job")
        .map(|(api_version, kind, _)| json!({"apiVersion": api_version, "kind": kind}))
        // Declared, and not served by this cluster.
        .chain([json!({"apiVersion": "example.org/v1", "kind": "Gadget"})])
        .collect();
    let manifest = json!({
        "name": "web", "version": "1", "status": status, "children": children,
        "parent": {"apiVersion": "cases.example.com/v1", "kind": "Widget"},
    });
    let permissions = Permissions { adopt: true, ..Permissions::default() };
    Manifest::parse(&manifest.to_string()).unwrap().permit(&permissions.into()).unwrap()
}

fn sources() -> Sources {
    let child = |(api_version, kind, namespaced): (&str, &str, bool)| {
        let gvk = Gvk::new(api_version, kind);
        (gvk.clone(), (WatchKey { gvk, scope: Scope::default() }, namespaced))
    };
    Sources { children: KINDS.into_iter().map(child).collect(), ..Sources::new("website".into()) }
}

fn parent(namespace: Option<&str>) -> ObjectKey {
    ObjectKey {
        gvk: Gvk::new("cases.example.com/v1", "Widget"),
        namespace: namespace.map(Into::into),
        name: "w1".into(),
    }
}

fn checked(raw: RawPlan) -> Result<Plan, Error> {
    Plan::check(raw, &parent(Some("demo")), &manifest(true), &sources(), "oarlock-system", &Limits::STANDARD)
}

/// The whole chain of an error, as whoever reports it writes it.
fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn child(object: &Value) -> Result<Child, String> {
    let raw = RawPlan { children: vec![object.to_string()], ..RawPlan::default() };
    checked(raw).map(|mut plan| plan.children.remove(0)).map_err(|error| text(&error))
}

fn config_map(metadata: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

fn condition(reason: &str, message: &str) -> Condition {
    Condition {
        r#type: "Ready".to_owned(),
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

#[test]
fn child_gets_the_parents_namespace_and_loses_nulls_and_what_is_not_applied() {
    let child = child(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "w1", "creationTimestamp": null, "generation": 3, "uid": "", "managedFields": [],
            "annotations": {
                "oarlock.dev/adopt": "true", "oarlock.dev/update": "rolling", "oarlock.dev/wave": "-2",
                "example.org/a": "b",
            },
        },
        // B004.
        "spec": {"template": {"metadata": {"annotations": null}, "spec": {"nodeSelector": null, "containers": [null, {"name": "web", "image": null}]}}},
    }))
    .unwrap();
    assert_eq!(child.options, Options { adopt: true, update: Update::Rolling, wave: -2, fields: false });
    assert_eq!(child.key.to_string(), "Deployment demo/w1");
    assert_eq!(
        Value::Object(child.object),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "w1", "namespace": "demo",
                "annotations": {
                    "oarlock.dev/update": "rolling", "oarlock.dev/wave": "-2", "example.org/a": "b",
                },
            },
            "spec": {"template": {"metadata": {}, "spec": {"containers": [{"name": "web"}]}}},
        })
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn child_is_refused_with_a_remedy() {
    let named = |field: &str, value: Value| {
        let mut metadata = json!({"name": "x"});
        metadata[field] = value;
        config_map(&metadata)
    };
    for (object, expected) in [
        (json!([]), "child 0 cannot be read: invalid type: sequence, expected a map at line 1 column 0"),
        (json!({"kind": "ConfigMap"}), "child 0 has no apiVersion"),
        (json!({"apiVersion": "v1", "kind": ""}), "child 0 has no kind"),
        (json!({"apiVersion": "v1", "kind": 1}), "child 0: kind must be text"),
        (json!({"apiVersion": "v1", "kind": "ConfigMap"}), "child 0 (ConfigMap) has no metadata.name"),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": 1}),
            "child 0 (ConfigMap): metadata must be an object",
        ),
        // B038 c.
        (
            config_map(&json!({"generateName": "w1-"})),
            "child 0 (ConfigMap) has no stable name: metadata.generateName gives another one at each apply; set \
             metadata.name, for example derived from the parent's name",
        ),
        (
            config_map(&json!({"name": "../secrets/x"})),
            "child 0 (ConfigMap) ../secrets/x: metadata.name must be a name: at most 253 visible ASCII characters \
             without / % ? #, and not . or ..",
        ),
        (
            config_map(&json!({"name": "x", "namespace": "a/b"})),
            "child 0 (ConfigMap) x: metadata.namespace must be a name: at most 253 visible ASCII characters without \
             / % ? #, and not . or ..",
        ),
        (
            config_map(&json!({"name": "x", "namespace": "other"})),
            "ConfigMap other/x is not allowed: ConfigMap other/x is outside of the parent's namespace demo",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x", "namespace": "demo"}}),
            "Namespace x names the namespace demo, but its kind is cluster-scoped; leave the namespace out",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}),
            "Namespace x is not allowed: Namespace x is cluster-scoped, its parent is in namespace demo",
        ),
        (
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}),
            "Job demo/x is not allowed: the manifest does not declare Job (batch/v1) under children",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}}),
            "Node x is not allowed: the manifest does not declare Node (v1) under children",
        ),
        (
            json!({"apiVersion": "example.org/v1", "kind": "Gadget", "metadata": {"name": "x"}}),
            "Gadget (example.org/v1) is not being watched",
        ),
        (
            json!({"apiVersion": "cases.example.com/v1", "kind": "Widget", "metadata": {"name": "w1"}}),
            "Widget demo/w1 is planned as its own child; own its labels and annotations with the plan's metadata",
        ),
        (
            named("uid", json!("u")),
            "ConfigMap demo/x sets metadata.uid, which the host writes, as the object it means to change; leave it out",
        ),
        (
            named("resourceVersion", json!("1")),
            "ConfigMap demo/x sets metadata.resourceVersion, which only the API server writes; leave it out",
        ),
        (
            named("ownerReferences", json!([{"uid": "u", "controller": true}])),
            "ConfigMap demo/x sets metadata.ownerReferences with a controller, which is always the parent, set by \
             the host; leave it out",
        ),
        (
            named("ownerReferences", json!({})),
            "child 0 (ConfigMap) x: metadata.ownerReferences must be a list",
        ),
        (
            named("finalizers", json!(["oarlock.dev/web"])),
            "ConfigMap demo/x sets an oarlock.dev finalizer, which only the host adds and removes; leave it out",
        ),
        (
            named("labels", json!({"a": 1})),
            "child 0 (ConfigMap) x: metadata.labels[a] must be text; numbers and booleans need quotes",
        ),
        (named("annotations", json!([])), "child 0 (ConfigMap) x: metadata.annotations must be an object"),
        (
            named("labels", json!({"oarlock.dev/plugin": "true"})),
            "ConfigMap demo/x carries oarlock.dev/plugin, which belongs to the host; options are the annotations \
             oarlock.dev/adopt, oarlock.dev/update, oarlock.dev/wave and oarlock.dev/ownership",
        ),
        (
            named("annotations", json!({"oarlock.dev/applied": "v1:0"})),
            "ConfigMap demo/x carries oarlock.dev/applied, which belongs to the host; options are the annotations \
             oarlock.dev/adopt, oarlock.dev/update, oarlock.dev/wave and oarlock.dev/ownership",
        ),
        (
            named("annotations", json!({"oarlock.dev/on-delete": "orphan"})),
            "ConfigMap demo/x asks for oarlock.dev/on-delete, which this version of the host does not implement yet",
        ),
        (
            named("annotations", json!({"oarlock.dev/update": "recreate"})),
            r#"ConfigMap demo/x sets oarlock.dev/update to "recreate"; it takes apply, replace, on-delete or rolling"#,
        ),
        (
            named("annotations", json!({"oarlock.dev/ownership": "all"})),
            r#"ConfigMap demo/x sets oarlock.dev/ownership to "all"; it takes fields, and that only where oarlock.dev/update is apply"#,
        ),
        (
            named("annotations", json!({"oarlock.dev/ownership": "fields", "oarlock.dev/update": "replace"})),
            "ConfigMap demo/x sets oarlock.dev/ownership to \"fields\"; it takes fields, and that only where \
             oarlock.dev/update is apply",
        ),
        (
            named("annotations", json!({"oarlock.dev/fields-u1": "x"})),
            "ConfigMap demo/x carries oarlock.dev/fields-u1, which belongs to the host; options are the annotations \
             oarlock.dev/adopt, oarlock.dev/update, oarlock.dev/wave and oarlock.dev/ownership",
        ),
        (
            named("annotations", json!({"oarlock.dev/wave": "1.5"})),
            r#"ConfigMap demo/x sets oarlock.dev/wave to "1.5"; it takes a whole number from -1000 to 1000"#,
        ),
        (
            named("annotations", json!({"oarlock.dev/wave": "1001"})),
            r#"ConfigMap demo/x sets oarlock.dev/wave to "1001"; it takes a whole number from -1000 to 1000"#,
        ),
        (
            named("annotations", json!({"oarlock.dev/adopt": "yes"})),
            r#"ConfigMap demo/x sets oarlock.dev/adopt to "yes"; it takes "true" or "false""#,
        ),
        (
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "type": "kubernetes.io/service-account-token"}),
            "Secret demo/x has the type kubernetes.io/service-account-token, which makes the API server issue a \
             token, which plugins may not write",
        ),
    ] {
        assert_eq!(child(&object).unwrap_err(), expected, "{object}");
    }
}

#[test]
fn child_may_carry_owners_and_finalizers_of_others() {
    let metadata = json!({"name": "x", "ownerReferences": [{"uid": "u"}], "finalizers": ["example.org/x"]});
    let child = child(&config_map(&metadata)).unwrap();
    assert_eq!(child.object["metadata"]["ownerReferences"], metadata["ownerReferences"]);
    assert_eq!(child.object["metadata"]["finalizers"], metadata["finalizers"]);
}

#[test]
fn children_of_a_cluster_scoped_parent_name_their_namespace() {
    let check = |object: Value| {
        let raw = RawPlan { children: vec![object.to_string()], ..RawPlan::default() };
        Plan::check(raw, &parent(None), &manifest(true), &sources(), "oarlock-system", &Limits::STANDARD)
            .map(|plan| plan.children[0].key.to_string())
            .map_err(|error| text(&error))
    };
    assert_eq!(check(config_map(&json!({"name": "x", "namespace": "a"}))).unwrap(), "ConfigMap a/x");
    assert_eq!(
        check(config_map(&json!({"name": "x"}))).unwrap_err(),
        "child 0 (ConfigMap) x has no metadata.namespace: its parent is cluster-scoped, so there is none to take over"
    );
    assert_eq!(
        check(config_map(&json!({"name": "x", "namespace": "oarlock-system"}))).unwrap_err(),
        "ConfigMap oarlock-system/x is not allowed: ConfigMap oarlock-system/x is in the host's namespace \
         oarlock-system, where plugins may not write"
    );
    let namespace = |labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x", "labels": labels}});
    assert_eq!(check(namespace(json!({"team": "a"}))).unwrap(), "Namespace x");
    assert_eq!(
        check(namespace(json!({"pod-security.kubernetes.io/enforce": "privileged"}))).unwrap_err(),
        "Namespace x has the label pod-security.kubernetes.io/enforce, which plugins may not write"
    );
}

#[test]
fn children_are_put_in_the_order_of_their_needs() {
    let plan = |kinds: &[(&str, &str, &str)]| {
        let object = |(api_version, kind, name): &(&str, &str, &str)| {
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}).to_string()
        };
        checked(RawPlan { children: kinds.iter().map(object).collect(), ..RawPlan::default() })
    };
    let sorted = plan(&[
        ("networking.k8s.io/v1", "Ingress", "i"),
        ("v1", "Service", "s"),
        ("apps/v1", "Deployment", "d"),
        ("v1", "PersistentVolumeClaim", "p"),
        ("v1", "Secret", "b"),
        ("v1", "ConfigMap", "a"),
        ("v1", "ServiceAccount", "sa"),
    ])
    .unwrap();
    let names: Vec<_> = sorted.children.iter().map(|child| &*child.key.name).collect();
    assert_eq!(names, ["sa", "b", "a", "p", "d", "i", "s"]);

    // The same object by two versions of its kind is one object.
    for second in ["apps/v1", "apps/v1beta1"] {
        let error = plan(&[("apps/v1", "Deployment", "d"), (second, "Deployment", "d")]).unwrap_err();
        assert_eq!(text(&error), "Deployment demo/d is planned twice");
    }
}

#[test]
fn plan_is_refused_when_it_is_too_much() {
    let deep = format!("{}{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let with_children = |children| RawPlan { children, ..RawPlan::default() };
    let conditions = |count: usize| -> Vec<Condition> {
        (0..count).map(|number| Condition { r#type: format!("T{number}"), ..condition("Ok", "") }).collect()
    };
    for (raw, expected) in [
        // B050.
        (with_children(vec![deep.clone()]), "the plan's child 0 is nested deeper than 127 levels"),
        (
            RawPlan { status: Some(deep.clone()), ..RawPlan::default() },
            "the plan's status is nested deeper than 127 levels",
        ),
        (
            RawPlan { metadata: Some(deep), ..RawPlan::default() },
            "the plan's metadata is nested deeper than 127 levels",
        ),
        (with_children(vec![String::new(); 1_001]), "the plan has 1001 children, at most 1000 are allowed"),
        (
            RawPlan { conditions: conditions(65), ..RawPlan::default() },
            "the plan has 65 conditions, at most 64 are allowed",
        ),
    ] {
        assert_eq!(text(&checked(raw).unwrap_err()), expected);
    }
    // As deep as may be is read.
    let status = format!("{}1{}", r#"{"a":"#.repeat(127), "}".repeat(127));
    assert!(checked(RawPlan { status: Some(status), ..RawPlan::default() }).is_ok());
    assert!(checked(RawPlan { conditions: conditions(64), ..RawPlan::default() }).is_ok());
}

#[test]
fn status_is_an_object_without_what_the_host_writes() {
    let check = |text: &str| checked(RawPlan { status: Some(text.to_owned()), ..RawPlan::default() });
    let status =
        check(r#"{"big": 9223372036854775807, "note": null, "list": [{"a": null}]}"#).unwrap().status;
    assert_eq!(Value::Object(status), json!({"big": 9_223_372_036_854_775_807_i64, "list": [{}]}));
    assert!(check("null").unwrap().status.is_empty());
    assert!(check("{}").unwrap().status.is_empty());
    for field in ["conditions", "observedGeneration"] {
        let error = check(&json!({field: 1}).to_string()).unwrap_err();
        assert_eq!(
            text(&error),
            format!("the plan's status has {field}, which the host writes; leave it out")
        );
    }
    assert!(matches!(check("[]").unwrap_err(), Error::Json { field: "status", .. }));
}

#[test]
fn status_is_refused_when_the_manifest_leaves_it_alone() {
    let check = |raw| {
        Plan::check(
            raw,
            &parent(Some("demo")),
            &manifest(false),
            &sources(),
            "oarlock-system",
            &Limits::STANDARD,
        )
    };
    assert!(check(RawPlan::default()).is_ok());
    for raw in [
        RawPlan { status: Some("{}".to_owned()), ..RawPlan::default() },
        RawPlan { conditions: vec![condition("Ok", "")], ..RawPlan::default() },
    ] {
        assert!(matches!(check(raw).unwrap_err(), Error::StatusUndeclared));
    }
}

#[test]
fn metadata_is_labels_and_annotations_that_are_not_the_hosts() {
    let check = |text: &str| checked(RawPlan { metadata: Some(text.to_owned()), ..RawPlan::default() });
    let plan = check(r#"{"labels": {"a": "1", "gone": null}, "annotations": {"b": "2"}}"#).unwrap();
    assert_eq!(plan.labels, BTreeMap::from([("a".to_owned(), "1".to_owned())]));
    assert_eq!(plan.annotations, BTreeMap::from([("b".to_owned(), "2".to_owned())]));
    assert!(check("null").unwrap().labels.is_empty());
    assert!(check(r#"{"labels": null}"#).unwrap().labels.is_empty());
    for field in ["labels", "annotations"] {
        let error = check(&json!({field: {"oarlock.dev/x": "1"}}).to_string()).unwrap_err();
        assert_eq!(
            text(&error),
            "the plan's metadata sets oarlock.dev/x on the parent, which belongs to the host"
        );
    }
    for unreadable in [r#"{"finalizers": []}"#, r#"{"labels": {"a": 1}}"#, "[1]"] {
        assert!(
            matches!(check(unreadable).unwrap_err(), Error::Json { field: "metadata", .. }),
            "{unreadable}"
        );
    }
}

#[test]
fn security_labels_of_a_namespace_are_refused_on_the_parent_too() {
    let labels = json!({"labels": {"pod-security.kubernetes.io/enforce": "privileged"}});
    let check = |kind: &str| {
        let parent = ObjectKey { gvk: Gvk::new("v1", kind), namespace: None, name: "n".into() };
        let raw = RawPlan { metadata: Some(labels.to_string()), ..RawPlan::default() };
        Plan::check(raw, &parent, &manifest(true), &sources(), "oarlock-system", &Limits::STANDARD)
            .map(drop)
            .map_err(|error| text(&error))
    };
    let refused = "Namespace n has the label pod-security.kubernetes.io/enforce, which plugins may not write";
    assert_eq!(check("Namespace"), Err(refused.to_owned()));
    assert_eq!(check("PersistentVolume"), Ok(()));
}

#[test]
fn condition_types_are_valid_and_unique() {
    let long = "a".repeat(317);
    for (r#type, valid) in [
        ("Ready", true),
        ("audit.example.org/Checked", true),
        ("9lives", true),
        ("With-Dash_and.dot", true),
        ("", false),
        ("Has Space", false),
        ("/Ready", false),
        ("Example.org/Ready", false),
        ("a/b/c", false),
        ("Ends-", false),
        (&*long, false),
        (&long[..316], true),
    ] {
        let given = Condition { r#type: r#type.to_owned(), ..condition("Ok", "") };
        let raw = RawPlan { conditions: vec![given], ..RawPlan::default() };
        assert_eq!(checked(raw).is_ok(), valid, "{type:?}");
    }
    let twice = RawPlan { conditions: vec![condition("Ok", ""), condition("No", "")], ..RawPlan::default() };
    assert!(matches!(checked(twice).unwrap_err(), Error::Condition { .. }));
}

/// The pattern of `metav1.Condition`, by hand.
fn is_reason(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty()
        && text.len() <= 1_024
        && text.starts_with(|char: char| char.is_ascii_alphabetic())
        && text.bytes().all(|byte| word(byte) || matches!(byte, b',' | b':'))
        && text.bytes().last().is_some_and(word)
}

#[test]
fn reason_and_message_are_brought_within_the_limits() {
    for ((reason, message), (expected_reason, expected_message)) in [
        (("Fine", "all good"), ("Fine", "all good")),
        (("A:b,c_1", "x"), ("A:b,c_1", "x")),
        // B058.
        (
            ("Continuous Archiving is Working", "since noon"),
            ("ContinuousArchivingIsWorking", r#"reason "Continuous Archiving is Working": since noon"#),
        ),
        (("", "x"), ("Unspecified", "x")),
        (("", ""), ("Unspecified", "Unspecified")),
        (("9lives", ""), ("Reason9lives", r#"reason "9lives": "#)),
        (("Ends-With-", "x"), ("EndsWith", r#"reason "Ends-With-": x"#)),
        (("Ends:", "x"), ("Ends", r#"reason "Ends:": x"#)),
        (("_private", "x"), ("Reason_private", r#"reason "_private": x"#)),
        (("日本", "x"), ("Unspecified", r#"reason "日本": x"#)),
        (("Fine", ""), ("Fine", "Fine")),
    ] {
        let once = condition(reason, message).within_limits();
        assert_eq!((&*once.reason, &*once.message), (expected_reason, expected_message), "{reason:?}");
        assert_eq!(once.clone().within_limits(), once, "a second time changes nothing");
    }
}

#[test]
fn long_text_is_cut_at_a_character_with_a_mark() {
    // B056.
    let long = "ä".repeat(23_506);
    let cut = condition("Fine", &long).within_limits();
    assert!(cut.message.len() <= 32_768 && cut.message.len() > 32_750, "{}", cut.message.len());
    assert!(cut.message.starts_with("ää") && cut.message.ends_with("ä… (cut)"));
    assert_eq!(cut.clone().within_limits(), cut);
    let exact = "a".repeat(32_768);
    assert_eq!(condition("Fine", &exact).within_limits().message, exact);

    let reason = condition(&"R,".repeat(2_000), "").within_limits();
    assert!(is_reason(&reason.reason), "{}", reason.reason);

    let event = Event { warning: true, reason: "r".repeat(200), note: long }.within_limits();
    assert_eq!(event.reason.len(), 128);
    assert!(event.note.len() <= 1_024 && event.note.ends_with("… (cut)"));
}

proptest::proptest! {
    #[test]
    fn any_text_becomes_a_valid_condition_that_stays(reason in ".*", message in ".{0,40}") {
        let once = condition(&reason, &message).within_limits();
        proptest::prop_assert!(is_reason(&once.reason), "{}", once.reason);
        proptest::prop_assert!(!once.message.is_empty());
        proptest::prop_assert!(is_reason(&reason) || reason.is_empty() || once.message.starts_with("reason "));
        proptest::prop_assert_eq!(once.clone().within_limits(), once);
    }

    #[test]
    fn any_text_is_refused_or_planned_but_never_panics(child in ".*", status in ".*", metadata in ".*") {
        let raw = RawPlan {
            children: vec![child],
            status: Some(status),
            metadata: Some(metadata),
            ..RawPlan::default()
        };
        let _ = checked(raw);
    }
}

#[test]
fn requeue_is_never_sooner_than_the_floor() {
    for (given, expected) in
        [(None, None), (Some(0), Some(100)), (Some(99), Some(100)), (Some(30_000), Some(30_000))]
    {
        let plan = checked(RawPlan { requeue_after: given, ..RawPlan::default() }).unwrap();
        assert_eq!(plan.requeue_after, expected.map(Duration::from_millis));
    }
}

#[test]
fn time_of_the_next_look_is_counted_from_the_call_on() {
    let plan = |requeue_after| checked(RawPlan { requeue_after, ..RawPlan::default() }).unwrap();
    for (since_call, left) in [(0, 20_000), (5_000, 15_000), (19_999, 1), (20_000, 20_000), (47_000, 13_000)]
    {
        let look_again = plan(Some(20_000)).look_again(Duration::from_millis(since_call));
        assert_eq!(look_again, Some(Duration::from_millis(left)), "{since_call} ms after the call");
        assert_eq!(plan(None).look_again(Duration::from_millis(since_call)), None);
    }
}

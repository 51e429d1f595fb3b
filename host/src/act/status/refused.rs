//! What the API server refuses of a status is left out of it, and remembered: the same is not asked for again.
//!
//! Never: I/O, clocks.

use super::{Desired, Shortfall, merge::CONDITIONS};
use crate::observe::discovery::StatusSchema;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

/// The API server's words about one field, in characters.
const WORDS: usize = 300;

/// What was refused of a desired status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The desired status and the schema that it was refused for.
    of: u64,
    /// Fields to leave out.
    members: BTreeSet<Vec<Step>>,
    /// Types of conditions to leave out.
    conditions: BTreeSet<String>,
    /// Whether the rest was refused too, or nothing is left to leave out.
    pub(super) is_whole: bool,
    /// In words.
    pub(super) shortfalls: Vec<Shortfall>,
}

/// One step of a field path. The order matters: of a list, later elements go first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Of an object or a map.
    Name(String),
    /// Of a list.
    Index(usize),
}

/// Tells a desired status, and the schema that it is held against, from others.
pub(super) fn identity(desired: &Desired, schema: &StatusSchema) -> u64 {
    xxh3_64(format!("{} {desired:?}", schema.hash).as_bytes())
}

impl Refusal {
    pub(super) fn new(of: u64) -> Self {
        Self {
            of,
            members: BTreeSet::new(),
            conditions: BTreeSet::new(),
            is_whole: false,
            shortfalls: Vec::new(),
        }
    }

    /// Whether it is about this status.
    pub(super) fn is_of(&self, of: u64) -> bool {
        self.of == of
    }

    /// Takes in an answer: the paths it names, and its words about them. `sent`: the status that was refused.
    pub(super) fn add(&mut self, paths: &[String], message: &str, sent: &Value, desired: &Desired) {
        let (members, conditions) = (self.members.len(), self.conditions.len());
        let is_first = self.shortfalls.is_empty();
        for path in paths {
            let steps = steps(path);
            let Some((Step::Name(root), below)) = steps.split_first() else { continue };
            if root != "status" {
                continue;
            }
            if below.first() == Some(&Step::Name(CONDITIONS.to_owned())) {
                self.add_conditions(below.get(1), sent, desired);
            } else if let Some(mut member) =
                desired.fields.as_ref().and_then(|fields| removable(fields, below))
            {
                // The places of a first answer are no longer those of a second: the list as a whole goes.
                if !is_first && matches!(member.last(), Some(Step::Index(_))) {
                    member.pop();
                }
                self.members.insert(member);
            }
        }
        self.is_whole = (members, conditions) == (self.members.len(), self.conditions.len());
        let words = words(message);
        let mut paths: Vec<_> = paths.iter().map(|path| shown(path)).collect();
        if paths.is_empty() {
            paths.push("status".to_owned());
        }
        for path in paths {
            if self.shortfalls.iter().all(|shortfall| shortfall.path != path) {
                self.shortfalls.push(Shortfall { path, refusal: Some(words.clone()) });
            }
        }
    }

    fn add_conditions(&mut self, at: Option<&Step>, sent: &Value, desired: &Desired) {
        let sent = match at {
            Some(Step::Index(index)) => sent[CONDITIONS].get(index).and_then(|one| one["type"].as_str()),
            Some(Step::Name(_)) | None => None,
        };
        // Without a place in the list it is about all of it.
        let is_meant = |r#type: &str| sent.is_none_or(|sent| sent == r#type);
        let meant = desired.conditions.iter().map(|condition| &condition.r#type);
        self.conditions.extend(meant.filter(|one| is_meant(one)).cloned());
    }

    /// The rest of the status.
    pub(super) fn rest(&self, desired: &Desired) -> Desired {
        let mut rest = desired.clone();
        rest.conditions.retain(|condition| !self.conditions.contains(&condition.r#type));
        if let Some(fields) = &mut rest.fields {
            // Later elements of a list first, so that the places of the others stay.
            self.members.iter().rev().for_each(|member| remove(fields, member));
        }
        rest
    }
}

/// `status.list[3].name` and `status.map[some.key]` step by step.
fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for (nth, part) in path.split(['[', ']']).enumerate() {
        if nth % 2 == 1 {
            steps.push(part.parse().map_or_else(|_| Step::Name(part.to_owned()), Step::Index));
        } else {
            let names = part.split('.').filter(|name| !name.is_empty());
            steps.extend(names.map(|name| Step::Name(name.to_owned())));
        }
    }
    steps
}

/// A path as people read it, the same for every element of a list.
fn shown(path: &str) -> String {
    let mut shown = String::with_capacity(path.len());
    for step in steps(path) {
        match step {
            Step::Name(name) if shown.is_empty() => shown = name,
            Step::Name(name) => shown.extend([".", &*name]),
            Step::Index(_) => shown.push_str("[*]"),
        }
    }
    shown
}

/// What has to go for a path: the value it names, the innermost object around one that is missing, the whole
/// element of a list. `None` if none of it is there.
fn removable(fields: &Map<String, Value>, path: &[Step]) -> Option<Vec<Step>> {
    let mut taken = Vec::new();
    let (first, path) = path.split_first()?;
    let Step::Name(name) = first else { return None };
    let mut at = fields.get(name)?;
    taken.push(first.clone());
    for step in path {
        match (at, step) {
            (Value::Object(object), Step::Name(name)) if object.contains_key(name) => {
                at = &object[name];
                taken.push(step.clone());
            }
            (Value::Object(object), Step::Index(index)) if object.contains_key(&index.to_string()) => {
                taken.push(Step::Name(index.to_string()));
                break;
            }
            (Value::Array(list), Step::Index(index)) if *index < list.len() => {
                taken.push(step.clone());
                break;
            }
            _ => break,
        }
    }
    Some(taken)
}

fn remove(fields: &mut Map<String, Value>, path: &[Step]) {
    match path {
        [Step::Name(name)] => drop(fields.remove(name)),
        [Step::Name(name), Step::Index(index)] => {
            if let Some(Value::Array(list)) = fields.get_mut(name)
                && *index < list.len()
            {
                list.remove(*index);
            }
        }
        [Step::Name(name), rest @ ..] => {
            if let Some(Value::Object(below)) = fields.get_mut(name) {
                remove(below, rest);
            }
        }
        _ => {}
    }
}

/// What an answer says about fields, without the name of the object before it.
fn words(message: &str) -> String {
    let typed = || message.split_once("Kind=")?.1.split_once("): ");
    let about = message.split_once("is invalid: ").or_else(typed).map_or(message, |(_, about)| about);
    about.chars().take(WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::plan::{Condition, ConditionStatus};
    use serde_json::json;

    fn desired(fields: &Value, types: &[&str]) -> Desired {
        let condition = |r#type: &&str| Condition {
            r#type: (*r#type).to_owned(),
            status: ConditionStatus::True,
            reason: "Ok".to_owned(),
            message: String::new(),
        };
        Desired {
            fields: fields.as_object().cloned(),
            conditions: types.iter().map(condition).collect(),
            keep_other_own: false,
            observed_generation: 1,
        }
    }

    /// What is left of the fields after an answer that names these paths.
    #[track_caller]
    fn check(fields: &Value, paths: &[&str], left: &Value) {
        let desired = desired(fields, &[]);
        let mut refusal = Refusal::new(1);
        let paths: Vec<_> = paths.iter().map(ToString::to_string).collect();
        refusal.add(&paths, "no", fields, &desired);
        assert_eq!(&Value::Object(refusal.rest(&desired).fields.unwrap()), left, "{paths:?}");
        assert_eq!(refusal.is_whole, fields == left, "{paths:?}");
    }

    #[test]
    fn named_members_are_left_out() {
        let fields =
            json!({"a": {"b": 1, "c": 2}, "list": [{"x": 1}, {"x": 2}, {"x": 3}], "map": {"k.l": 1, "7": 2}});
        check(
            &fields,
            &["status.a.b"],
            &json!({"a": {"c": 2}, "list": fields["list"], "map": fields["map"]}),
        );
        check(&fields, &["status.a"], &json!({"list": fields["list"], "map": fields["map"]}));
        // A member that is required and missing: nothing but its object can go.
        check(&fields, &["status.a.need"], &json!({"list": fields["list"], "map": fields["map"]}));
        check(
            &fields,
            &["status.list[0].x", "status.list[0].y", "status.list[2]"],
            &json!({"a": fields["a"], "list": [{"x": 2}], "map": fields["map"]}),
        );
        check(
            &fields,
            &["status.map[k.l]", "status.map[7]", "status.a", "status.a.b"],
            &json!({"list": fields["list"], "map": {}}),
        );
        for nothing in ["status", "status.other", "spec.a", "status.list[9].x.y", "", "status[0]"] {
            let left = if nothing.contains("[9]") {
                json!({"a": fields["a"], "map": fields["map"]})
            } else {
                fields.clone()
            };
            check(&fields, &[nothing], &left);
        }
        check(&fields, &[], &fields);
    }

    #[test]
    fn conditions_are_left_out_by_their_type() {
        let desired = desired(&json!({}), &["Ready", "Synced"]);
        // Somebody else's may stand before ours, and cannot be left out.
        let sent = json!({"conditions": [{"type": "Theirs"}, {"type": "Ready"}, {"type": "Synced"}]});
        for (path, left, is_whole) in [
            ("status.conditions[1].reason", &["Synced"][..], false),
            ("status.conditions[2]", &["Ready"], false),
            ("status.conditions", &[], false),
            ("status.conditions[0].reason", &["Ready", "Synced"], true),
        ] {
            let mut refusal = Refusal::new(1);
            refusal.add(&[path.to_owned()], "no", &sent, &desired);
            let rest = refusal.rest(&desired).conditions;
            let rest: Vec<_> = rest.iter().map(|condition| &*condition.r#type).collect();
            assert_eq!((&*rest, refusal.is_whole), (left, is_whole), "{path}");
        }
    }

    #[test]
    fn second_answer_adds_to_the_first() {
        let desired = desired(&json!({"a": [1, 2, 3], "b": 2, "c": 3}), &[]);
        let mut refusal = Refusal::new(1);
        let mut add = |path: &str, words: &str| {
            let rest = refusal.rest(&desired);
            refusal.add(&[path.to_owned()], words, &Value::Null, &rest);
            Value::Object(refusal.rest(&desired).fields.unwrap())
        };
        assert_eq!(add("status.a[0]", "no"), json!({"a": [2, 3], "b": 2, "c": 3}));
        assert_eq!(add("status.b", "never"), json!({"a": [2, 3], "c": 3}));
        // The second of what is left is the third of what was desired.
        assert_eq!(add("status.a[1]", "no"), json!({"c": 3}));
        let told = refusal.shortfalls.iter().map(|one| (&*one.path, one.refusal.as_deref().unwrap()));
        assert_eq!(told.collect::<Vec<_>>(), [("status.a[*]", "no"), ("status.b", "never")]);
    }

    #[test]
    fn words_are_the_same_for_all_objects() {
        for (message, expected) in [
            (
                r#"Widget.cases.example.com "w1" is invalid: status.phase: Unsupported value: "Odd""#,
                r#"status.phase: Unsupported value: "Odd""#,
            ),
            (
                "failed to create typed patch object (demo/w1; cases.example.com/v1, Kind=Widget): .status.n: expected numeric",
                ".status.n: expected numeric",
            ),
            ("whatever else", "whatever else"),
        ] {
            assert_eq!(words(message), expected);
        }
        assert_eq!(words(&"ä".repeat(1_000)).chars().count(), WORDS);
    }

    #[test]
    fn refusal_is_about_one_status_under_one_schema() {
        let schema = StatusSchema::any();
        let one = desired(&json!({"a": 1}), &["Ready"]);
        let refusal = Refusal::new(identity(&one, &schema));
        assert!(refusal.is_of(identity(&one.clone(), &schema)));
        let others = [
            desired(&json!({"a": 2}), &["Ready"]),
            desired(&json!({"a": 1}), &[]),
            Desired { observed_generation: 2, ..one.clone() },
        ];
        assert!(others.iter().all(|other| !refusal.is_of(identity(other, &schema))));
        assert!(!refusal.is_of(identity(&one, &StatusSchema { hash: 7, ..schema })));
    }
}

//! Who owns which field of an object: server-side apply, and what every other write does to `managedFields`.

mod managed;
mod set;
mod walk;

use crate::{
    refusal::{Cause, Refusal},
    schema::Kind,
};
use managed::{Entry, decode, encode};
use serde_json::{Value, json};
use set::Set;
use walk::Difference;

/// Who writes, and when.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// `status`, or empty.
    pub subresource: &'a str,
    /// RFC 3339, in whole seconds.
    pub time: &'a str,
}

/// The owner of what stood in an object whose fields nobody owned.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Server-side apply: the object as it would be stored, with its `managedFields`. Without `live` it is created.
pub fn apply(
    kind: &Kind,
    live: Option<&Value>,
    applied: &Value,
    write: &Write<'_>,
    force: bool,
) -> Result<Value, Refusal> {
    if applied["metadata"].get("managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Refusal::new(400, "BadRequest", "metadata.managedFields must be nil"));
    }
    let problems = problems(kind, applied);
    if !problems.is_empty() {
        return Err(Refusal::new(500, "", not_typed(kind, applied, &problems)));
    }
    let api_version = kind.api_version();
    let (at, ignored) = (kind.root(), Ignored::of(kind, write.subresource));
    let live = live.cloned().unwrap_or_else(|| kind.empty());
    let mut entries = decode(&live);
    let mut live = live;
    take_entries(&mut live);
    if entries.is_empty() {
        let write = Write { manager: BEFORE_FIRST_APPLY, ..*write };
        update(kind, &kind.empty(), &live, &mut entries, &write);
    }

    let mut fields = walk::fields(at, applied);
    ignored.remove(&mut fields);
    let mut own = Entry::new(write, true, api_version, fields);
    let last = entries.iter().position(|entry| entry.is_same(&own)).map(|index| entries.remove(index));
    let merged = walk::merge(at, Some(&live), Some(applied));
    let merged = match &last {
        Some(last) => prune(kind, &merged, last, entries.iter().chain([&own])),
        None => merged,
    };
    let mut difference = walk::compare(at, Some(&live), Some(&merged));
    ignored.remove_all(&mut difference);
    let conflicts = take_over(&mut entries, &difference);
    if !force && !conflicts.is_empty() {
        return Err(conflict(&conflicts));
    }

    own.fields.subtract(&unowned());
    // Who changes nothing has not been here.
    if walk::is_equal(&live, &merged) {
        own.time = last.and_then(|last| last.time);
    }
    entries.push(own);
    let mut merged = merged;
    encode(entries, &mut merged);
    Ok(merged)
}

/// Keeps `managedFields` right after any other write.
pub fn track(kind: &Kind, before: Option<&Value>, after: &mut Value, write: &Write<'_>) {
    let given =
        (write.subresource.is_empty()).then(|| after["metadata"].get("managedFields").cloned()).flatten();
    let is_reset = given.as_ref().is_some_and(|given| *given == json!([{}]));
    let mut entries = if write.subresource.is_empty() { decode(after) } else { Vec::new() };
    if entries.is_empty() || is_reset {
        entries = if is_reset { Vec::new() } else { before.map(decode).unwrap_or_default() };
    }
    take_entries(after);
    // An object whose fields nobody owns stays so until it is applied.
    if entries.is_empty() && before.is_some() {
        return;
    }
    let mut live = before.cloned().unwrap_or_else(|| kind.empty());
    take_entries(&mut live);
    update(kind, &live, after, &mut entries, write);
    encode(entries, after);
}

/// Whether a write from one to the other changes nothing: they differ at most in the times in `managedFields`,
/// `resourceVersion` and `generation`.
pub fn is_same(a: &Value, b: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
            metadata.remove("generation");
            for entry in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten()
            {
                entry.as_object_mut().map(|entry| entry.remove("time"));
            }
        }
        object
    };
    rest(a) == rest(b)
}

/// What of an object no write of a subresource changes, whatever it says.
struct Ignored(Set);

impl Ignored {
    fn of(kind: &Kind, subresource: &str) -> Self {
        Self(Set::of(kind.ignored(subresource)))
    }

    fn remove(&self, set: &mut Set) {
        set.subtract_whole(&self.0);
    }

    fn remove_all(&self, difference: &mut Difference) {
        for set in [&mut difference.added, &mut difference.removed, &mut difference.modified] {
            self.remove(set);
        }
    }
}

/// What nobody ever owns.
fn unowned() -> Set {
    const METADATA: [&str; 9] = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let mut paths: Vec<&[&str]> = vec![&["apiVersion"], &["kind"], &["metadata"]];
    let metadata = METADATA.map(|name| ["metadata", name]);
    paths.extend(metadata.iter().map(|path| &path[..]));
    Set::of(&paths)
}

fn take_entries(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

fn problems(kind: &Kind, object: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    walk::problems(kind.root(), object, "", &mut problems);
    problems
}

fn not_typed(kind: &Kind, object: &Value, problems: &[String]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let problems = match problems {
        [problem] => problem.clone(),
        problems => format!("errors:\n  {}", problems.join("\n  ")),
    };
    let Kind { group, version, kind, .. } = kind;
    format!(
        "failed to create typed patch object ({namespace}/{name}; {group}/{version}, Kind={kind}): {problems}"
    )
}

/// What a write that is no apply does to the entries: the writer owns what it changed, nobody else does.
fn update(kind: &Kind, live: &Value, after: &Value, entries: &mut Vec<Entry>, write: &Write<'_>) {
    let ignored = Ignored::of(kind, write.subresource);
    let mut difference = walk::compare(kind.root(), Some(live), Some(after));
    ignored.remove_all(&mut difference);
    take_over(entries, &difference);
    let mut taken = difference.added;
    taken.join(&difference.modified);
    taken.subtract(&unowned());
    entries.retain(|entry| !entry.fields.is_empty());
    if taken.is_empty() {
        return;
    }
    let own = Entry::new(write, false, kind.api_version(), taken);
    match entries.iter_mut().find(|entry| entry.is_same(&own)) {
        Some(known) => {
            known.fields.join(&own.fields);
            known.time = own.time;
        }
        None => entries.push(own),
    }
}

/// Takes from all entries what has changed, and tells what was taken from whom although it is still there.
fn take_over(entries: &mut [Entry], difference: &Difference) -> Vec<(String, Set)> {
    let mut changed = difference.modified.clone();
    changed.join(&difference.added);
    let mut conflicts = Vec::new();
    for entry in entries {
        let taken = entry.fields.common(&changed);
        if !taken.is_empty() {
            entry.fields.subtract(&taken);
            conflicts.push((entry.shown(), taken));
        }
        entry.fields.subtract(&difference.removed);
    }
    conflicts.sort_by(|(one, _), (other, _)| one.cmp(other));
    conflicts
}

fn conflict(conflicts: &[(String, Set)]) -> Refusal {
    let mut causes = Vec::new();
    let mut told = Vec::new();
    for (manager, fields) in conflicts {
        let paths = fields.paths();
        told.push(format!("conflicts with {manager}:\n- {}", paths.join("\n- ")));
        causes.extend(paths.into_iter().map(|field| Cause {
            reason: "FieldManagerConflict".into(),
            message: format!("conflict with {manager}"),
            field,
        }));
    }
    let told = match &causes[..] {
        [cause] => format!("1 conflict: {}: {}", cause.message, cause.field),
        causes => format!("{} conflicts: {}", causes.len(), told.join("\n")),
    };
    Refusal::new(409, "Conflict", format!("Apply failed with {told}")).because(causes).about("", "", "")
}

/// Removes what the manager applied last time and nobody owns any more.
fn prune<'a>(kind: &Kind, merged: &Value, last: &Entry, entries: impl Iterator<Item = &'a Entry>) -> Value {
    let at = kind.root();
    let mut owned = Set::default();
    entries.for_each(|entry| owned.join(&entry.fields));
    if last.fields.is_within(&owned) {
        return merged.clone();
    }
    let last = last.fields.clone().with_declared(at);
    let all = walk::fields(at, merged).with_declared(at);
    // What is owned comes back with what holds it; what nobody ever owned goes only with what held it.
    let mut kept = walk::fields(at, &walk::without(at, merged, &last)).with_declared(at);
    kept.join(&owned.with_declared(at));
    let mut gone = all.clone();
    gone.subtract(&kept);
    let kept = walk::fields(at, &walk::without(at, merged, &gone)).with_declared(at);
    let mut gone = all;
    gone.subtract(&kept);
    walk::without(at, merged, &gone.common(&last))
}

#[cfg(test)]
mod tests;

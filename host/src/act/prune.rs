//! Children that a complete plan no longer asks for go (rule A6).

use super::{
    apply::{Applied, Context},
    delete::{self, Warrant},
    fields,
};
use crate::{
    decide::plan::{Plan, rank, wave},
    object::{ANNOTATION_WAVE, LABEL_OWNED_BY, LABEL_PARENT, Object, ObjectKey},
    observe::{
        cache::Snapshot,
        client::{self, Answer},
        reads::Sources,
    },
};
use std::{cmp::Reverse, collections::HashSet, sync::Arc};

/// Why a child is not deleted yet that a new version of the plugin does not plan.
const HELD: &str = "is no longer planned by the plugin's new version, which would delete children of too many objects \
                    and waits for approval";

/// Proof that every child of a plan is in place; only [`Complete::proven`] makes one.
pub struct Complete<'a> {
    plan: &'a Plan,
}

impl<'a> Complete<'a> {
    /// The proof, if the plan was applied completely.
    pub fn proven(plan: &'a Plan, applied: &Applied) -> Option<Self> {
        applied.is_complete().then_some(Self { plan })
    }
}

/// What pruning came to.
#[derive(Default)]
pub struct Pruned {
    /// Deleted by this pass.
    pub deleted: Vec<Arc<Object>>,
    /// Objects of others, after what was owned of them has been given back.
    pub given_back: Vec<Arc<Object>>,
    /// Not deleted before others are gone, each with what it waits for.
    pub held: Vec<(ObjectKey, String)>,
    /// The first error; one that cannot be deleted does not stop the others.
    pub error: Option<client::Error>,
}

/// Deletes what is labelled as this parent's and is controlled by it, of every kind the plugin ever applied,
/// and is not planned. Each delete carries the uid it was decided on.
///
/// A wave goes when all higher ones are gone; within it what others need goes last, the reverse of the order of
/// applying.
///
/// With `keeps_children` only what was owned of others' objects is given back.
///
/// `may_prune` is asked before the first child is deleted; if it says no, all of them are held.
pub async fn children(
    context: Context<'_>,
    complete: Complete<'_>,
    keeps_children: bool,
    may_prune: impl FnOnce() -> bool,
) -> Pruned {
    let Context { snapshot, sources, parent, .. } = context;
    let is_planned = |key: &ObjectKey| {
        let fields = complete.plan.children.iter().filter(|child| child.options.fields);
        fields.map(|child| child.key.identity()).any(|planned| planned == key.identity())
    };
    let (given_back, error) = fields::give_back(context, is_planned).await;
    if keeps_children {
        return Pruned { given_back, error, ..Pruned::default() };
    }
    let unplanned = unplanned_in(snapshot, sources, complete.plan, parent);
    let (going, mut held) = by_wave(&unplanned);
    if !going.is_empty() && !may_prune() {
        held.extend(going.into_iter().map(|child| (child.key.clone(), HELD.to_owned())));
        return Pruned { given_back, held, error, ..Pruned::default() };
    }
    let mut pruned = Pruned { given_back, held, error, ..Pruned::default() };
    if let Some(first) = going.first()
        && let Err(error) = check_current(context, &first.key).await
    {
        pruned.error.get_or_insert(error);
        return pruned;
    }
    for object in going {
        match delete::one(context, object, Warrant::unplanned(&complete)).await {
            Ok(true) => pruned.deleted.push(Arc::clone(object)),
            Ok(false) => {}
            Err(error) => drop(pruned.error.get_or_insert(error)),
        }
    }
    pruned
}

/// What is deleted does not come back, so it is not deleted on a view of the parent that is older than the API
/// server's: one request for a pass that deletes. Right after a start, a watch of children may be further than the
/// parent's, where an API server that lags has answered the list.
async fn check_current(context: Context<'_>, child: &ObjectKey) -> Result<(), client::Error> {
    let Context { client, discovery, parent, .. } = context;
    let kind = discovery.kind(&parent.key.gvk).await?;
    let now = client.get(&kind, &parent.key).await?;
    let is_current = |now: &Object| {
        (&now.uid, now.generation, &now.deleted) == (&parent.uid, parent.generation, &parent.deleted)
    };
    if now.as_ref().is_some_and(is_current) {
        return Ok(());
    }
    Err(client::Error {
        verb: "delete",
        target: child.to_string(),
        answer: Answer::VersionConflict,
        message: format!("{} has changed since this was planned", parent.key),
        retry_after: None,
    })
}

/// Of those that go, highest wave first: what is deleted now, and what waits for it to be gone.
fn by_wave<'a>(unplanned: &[&'a Arc<Object>]) -> (Vec<&'a Arc<Object>>, Vec<(ObjectKey, String)>) {
    let Some(first) = unplanned.first() else { return Default::default() };
    let wave = wave_of(first);
    let (now, later): (Vec<_>, Vec<_>) =
        unplanned.iter().copied().partition(|object| wave_of(object) == wave);
    let why = format!("is deleted after wave {wave} is gone, which waits for {}", first.key);
    let held = later.iter().filter(|object| !object.is_terminating());
    let held = held.map(|object| (object.key.clone(), why.clone())).collect();
    (now.into_iter().filter(|object| !object.is_terminating()).collect(), held)
}

/// The wave that a live child was applied in.
fn wave_of(object: &Object) -> i32 {
    // Somebody may have written there.
    object.annotations.get(ANNOTATION_WAVE).and_then(|text| wave(text)).unwrap_or_default()
}

/// Those of the parent's children in a moment that a plan does not have.
pub(super) fn unplanned_in<'a>(
    snapshot: &'a Snapshot,
    sources: &'a Sources,
    plan: &Plan,
    parent: &'a Object,
) -> Vec<&'a Arc<Object>> {
    let labelled = sources.children.values().flat_map(|(watch, _)| snapshot.children(watch, &parent.uid));
    unplanned(labelled, plan, &sources.plugin, parent)
}

/// Those of the parent's children that go, in the order in which they go.
fn unplanned<'a>(
    labelled: impl Iterator<Item = &'a Arc<Object>>,
    plan: &Plan,
    plugin: &str,
    parent: &Object,
) -> Vec<&'a Arc<Object>> {
    let planned: HashSet<_> = plan.children.iter().map(|child| child.key.identity()).collect();
    // Two versions of a kind show the same object.
    let mut seen = HashSet::new();
    let mut unplanned: Vec<_> = labelled
        .filter(|object| is_provably_ours(object, plugin, parent))
        .filter(|object| !planned.contains(&object.key.identity()) && seen.insert(&*object.uid))
        .collect();
    unplanned.sort_by_key(|object| Reverse((wave_of(object), rank(&object.key.gvk))));
    unplanned
}

/// Labels say whose it is, but anyone can set them; the controller reference says so by uid, but the parent may
/// have children of other plugins: only both together are proof (B034).
fn is_provably_ours(object: &Object, plugin: &str, parent: &Object) -> bool {
    object.labels.get(LABEL_OWNED_BY).is_some_and(|owner| owner == plugin)
        && object.labels.get(LABEL_PARENT).is_some_and(|uid| **uid == *parent.uid)
        && object.controller().is_some_and(|owner| owner.uid == parent.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decide::plan::{Child, Options},
        object::Gvk,
    };
    use serde_json::{Map, json};
    use std::collections::BTreeMap;

    fn object(
        api_version: &str,
        kind: &str,
        name: &str,
        owned_by: &str,
        controller: Option<&str>,
    ) -> Arc<Object> {
        let owners: Vec<_> = controller
            .into_iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "Widget", "name": "w", "uid": uid, "controller": true}))
            .collect();
        let object = json!({
            "metadata": {
                "name": name, "namespace": "demo", "uid": format!("uid-{kind}-{name}"), "ownerReferences": owners,
                "labels": {LABEL_OWNED_BY: owned_by, LABEL_PARENT: "parent"},
            },
        });
        Arc::new(Object::decode(&Gvk::new(api_version, kind), &object.to_string()).unwrap())
    }

    fn plan(planned: &[&Object]) -> Plan {
        let child = |object: &&Object| Child {
            key: object.key.clone(),
            object: Map::new(),
            options: Options::default(),
        };
        Plan {
            children: planned.iter().map(child).collect(),
            status: Map::new(),
            conditions: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            events: Vec::new(),
            requeue_after: None,
        }
    }

    fn pruned(objects: &[Arc<Object>], planned: &[&Object]) -> Vec<String> {
        let parent = json!({"metadata": {"name": "w", "namespace": "demo", "uid": "parent"}});
        let parent = Object::decode(&Gvk::new("v1", "Widget"), &parent.to_string()).unwrap();
        let plan = plan(planned);
        let unplanned = unplanned(objects.iter(), &plan, "web", &parent);
        by_wave(&unplanned).0.into_iter().map(|object| object.key.to_string()).collect()
    }

    #[test]
    fn only_what_is_provably_ours_and_unplanned_goes() {
        // B034: our labels on somebody else's object are no proof.
        let by_labels_only = object("v1", "ConfigMap", "other", "web", None);
        let of_another_parent = object("v1", "ConfigMap", "theirs", "web", Some("another"));
        let of_another_plugin = object("v1", "ConfigMap", "peer", "cache", Some("parent"));
        let ours = object("v1", "ConfigMap", "old", "web", Some("parent"));
        let planned = object("v1", "ConfigMap", "kept", "web", Some("parent"));
        let mut terminating = Object::clone(&object("v1", "ConfigMap", "going", "web", Some("parent")));
        terminating.deleted = Some("2026-01-01T00:00:00Z".into());
        let objects = [
            by_labels_only,
            of_another_parent,
            of_another_plugin,
            ours,
            planned.clone(),
            Arc::new(terminating),
        ];
        assert_eq!(pruned(&objects, &[&planned]), ["ConfigMap demo/old"]);
    }

    #[test]
    fn versions_of_a_kind_show_one_object() {
        let old = object("apps/v1beta1", "Deployment", "d", "web", Some("parent"));
        let new = object("apps/v1", "Deployment", "d", "web", Some("parent"));
        assert!(pruned(std::slice::from_ref(&old), &[&new]).is_empty(), "planned under another version");
        assert_eq!(pruned(&[old, new], &[]), ["Deployment demo/d"]);
    }

    #[test]
    fn what_others_need_goes_last() {
        let ours = |api_version, kind| object(api_version, kind, "x", "web", Some("parent"));
        let objects = [
            ours("v1", "ServiceAccount"),
            ours("apps/v1", "Deployment"),
            ours("v1", "Service"),
            ours("v1", "Secret"),
        ];
        let expected = ["Service demo/x", "Deployment demo/x", "Secret demo/x", "ServiceAccount demo/x"];
        assert_eq!(pruned(&objects, &[]), expected);
    }

    #[test]
    fn wave_goes_when_the_higher_ones_are_gone() {
        let in_wave = |wave: &str, name, is_terminating: bool| {
            let mut object = Object::clone(&object("v1", "ConfigMap", name, "web", Some("parent")));
            object.annotations.insert(ANNOTATION_WAVE.into(), wave.into());
            object.deleted = is_terminating.then(|| "2026-01-01T00:00:00Z".into());
            Arc::new(object)
        };
        let plain = object("v1", "ConfigMap", "plain", "web", Some("parent"));
        let (low, high) = (in_wave("-1", "low", false), in_wave("2", "high", false));
        let all = [plain.clone(), low.clone(), high.clone(), in_wave("2", "peer", false)];
        assert_eq!(pruned(&all, &[]), ["ConfigMap demo/high", "ConfigMap demo/peer"]);
        // Until it is gone, nothing more.
        let going = in_wave("2", "high", true);
        assert_eq!(pruned(&[plain.clone(), low.clone(), going.clone()], &[]), [""; 0]);
        assert_eq!(pruned(&[plain.clone(), low.clone()], &[]), ["ConfigMap demo/plain"]);
        assert_eq!(pruned(&[low.clone(), in_wave("x", "odd", false)], &[]), ["ConfigMap demo/odd"]);
        let (_, held) = by_wave(&[&going, &plain, &low]);
        let why = "is deleted after wave 2 is gone, which waits for ConfigMap demo/high";
        assert_eq!(held, [(plain.key.clone(), why.to_owned()), (low.key.clone(), why.to_owned())]);
    }

    #[test]
    fn proof_needs_every_child_in_place() {
        let child = object("v1", "ConfigMap", "a", "web", None);
        let plan = plan(&[&child]);
        assert!(Complete::proven(&plan, &Applied { unchanged: 1, ..Applied::default() }).is_some());
        let awaited = Applied { awaited: vec![child.key.clone()], ..Applied::default() };
        assert!(Complete::proven(&plan, &awaited).is_none());
        // B037.
        let error = super::super::apply::Error::NotOwned { child: child.key.clone(), owner: String::new() };
        let failed = Applied { failed: vec![(child.key.clone(), error)], ..Applied::default() };
        assert!(Complete::proven(&plan, &failed).is_none());
    }
}

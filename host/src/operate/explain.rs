//! What the host knows of one object: who reconciles it, what the last passes came to, what is next.
//!
//! In: a question as people ask it, `website demo/blog`. Out: an [`Explanation`], or what stands against one and what
//! to do. Names, reasons and messages only: never a value or the content of an object.

mod answer;
#[cfg(test)]
mod tests;

pub use answer::{
    Explanation, Next, NextWhen, Object, Plugin, Problem, Reconcile, ReconcileFailure, Standing, Written,
};

use crate::{
    clock::Clock,
    dispatch::Dispatch,
    object,
    observe::{
        cache::{Cache, Snapshot},
        discovery::Kind,
        reads::{Memos, ParentRef},
    },
    operate::journal::Journal,
    plugins::{ActivePlugin, InForce, Registry, rollout::plugins_watch},
    schedule::queue::{Look, Waits},
};
use jiff::{SignedDuration, Timestamp};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Reads that are named; the others are counted. A call may make a thousand.
const READS: usize = 100;

/// Whom it asks.
pub struct Explain {
    /// The time.
    pub clock: Clock,
    /// What is in force.
    pub registry: Arc<Registry>,
    /// Objects.
    pub cache: Arc<Cache>,
    /// What was read.
    pub memos: Arc<Memos>,
    /// What is next.
    pub dispatch: Arc<Dispatch>,
    /// What was done.
    pub journal: Arc<Journal>,
}

/// A question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The kind as for kubectl: `website`, `Websites`, `websites.demo.oarlock.dev`.
    pub kind: String,
    /// The object's namespace; nothing for one that has none.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// Only this plugin.
    pub plugin: Option<String>,
}

impl Explain {
    /// Answers.
    ///
    /// # Errors
    /// There is no such kind or object here; with what to do about it.
    pub fn answer(&self, question: &Question) -> Result<Explanation, Problem> {
        let (in_force, snapshot) = (self.registry.now(), self.cache.snapshot());
        let plugins = plugins(&in_force, &snapshot, question)?;
        let parent_kind = &plugins[0].parent_kind;
        let namespace = parent_kind.namespaced.then_some(&*question.namespace);
        let now = self.clock.now();
        let mut parent = None;
        let mut told = Vec::new();
        for plugin in &plugins {
            if let Some(object) = snapshot.get(&plugin.parents, namespace, &question.name) {
                told.push(self.plugin(plugin.of(object), object, &snapshot, now));
                parent = Some(object);
            }
        }
        let Some(parent) = parent else {
            return Err(unknown_object(&plugins, &snapshot, namespace, question));
        };
        let key = &parent.key;
        Ok(Explanation {
            api_version: answer::API_VERSION.to_owned(),
            kind: answer::KIND.to_owned(),
            now: text(now),
            object: Object {
                api_version: key.gvk.api_version(),
                kind: key.gvk.kind.to_string(),
                namespace: key.namespace.as_deref().map(str::to_owned),
                name: key.name.to_string(),
                generation: parent.generation,
            },
            plugins: told,
        })
    }

    fn plugin(
        &self,
        plugin: &ActivePlugin,
        parent: &object::Object,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Plugin {
        let reference = ParentRef { plugin: plugin.name.clone(), parent: parent.key.clone() };
        let record = self.journal.of(&reference).filter(|record| *record.uid == *parent.uid);
        let reads = self.memos.reads(&reference).unwrap_or_default();
        Plugin {
            name: plugin.name.to_string(),
            version: plugin.manifest.version.clone(),
            digest: plugin.digest.to_string(),
            standing: standing(snapshot, &plugin.name),
            checked: record.as_ref().map(|record| text(record.checked)),
            changed: record.as_ref().and_then(|record| record.changed).map(text),
            next: next(self.dispatch.look(&reference), self.dispatch.now(), now),
            reads: reads.iter().take(READS).map(|(read, _)| read.to_string()).collect(),
            more_reads: reads.len().saturating_sub(READS),
            reconciles: record.into_iter().flat_map(|record| record.entries).map(Reconcile::from).collect(),
        }
    }
}

/// The plugins in force for a kind, at least one, all for the same kind.
fn plugins(
    in_force: &InForce,
    snapshot: &Snapshot,
    question: &Question,
) -> Result<Vec<Arc<ActivePlugin>>, Problem> {
    let all = in_force.plugins.values();
    let mut found: Vec<_> =
        all.filter(|plugin| is_called(&plugin.parent_kind, &question.kind)).cloned().collect();
    if let Some(name) = &question.plugin {
        found.retain(|plugin| *plugin.name == **name);
        if found.is_empty() {
            return Err(unknown_plugin(name, in_force, snapshot, question));
        }
    }
    let kinds: BTreeSet<String> = found.iter().map(|plugin| resource(plugin)).collect();
    match kinds.len() {
        0 => Err(unknown_kind(in_force, snapshot, question)),
        1 => Ok(found),
        _ => Err(Problem {
            error: format!("{} may be any of {}", question.kind, list(kinds)),
            help: "name one of them so, or the plugin with --plugin".to_owned(),
        }),
    }
}

/// Whether people call a kind so: `website`, `websites`, `websites.demo.oarlock.dev` or
/// `websites.v1.demo.oarlock.dev`; capitals do not matter.
fn is_called(kind: &Kind, word: &str) -> bool {
    let word = word.to_lowercase();
    let gvk = &kind.gvk;
    [kind.plural.to_lowercase(), gvk.kind.to_lowercase()].iter().any(|name| {
        let Some(rest) = word.strip_prefix(&**name) else { return false };
        let Some(rest) = rest.strip_prefix('.') else { return rest.is_empty() };
        rest == &*gvk.group || rest.strip_prefix(&*gvk.version) == Some(&*format!(".{}", gvk.group))
    })
}

/// The parent kind as kubectl names it without doubt.
fn resource(plugin: &ActivePlugin) -> String {
    let kind = &plugin.parent_kind;
    if kind.gvk.group.is_empty() {
        kind.plural.clone()
    } else {
        format!("{}.{}", kind.plural, kind.gvk.group)
    }
}

/// What the `Plugin` says of itself.
fn standing(snapshot: &Snapshot, plugin: &str) -> Option<Standing> {
    answer::standing(snapshot.get(&plugins_watch(), None, plugin)?)
}

fn unknown_kind(in_force: &InForce, snapshot: &Snapshot, question: &Question) -> Problem {
    let kinds: BTreeSet<_> = in_force.plugins.values().map(|plugin| resource(plugin)).collect();
    let error = format!("no plugin in force reconciles {}", question.kind);
    let help = match (waiting(snapshot), kinds.is_empty()) {
        (waiting, _) if !waiting.is_empty() => {
            format!("these plugins do not serve: {}; see `oarlock get plugins -o wide`", waiting.join("; "))
        }
        (_, true) => "no plugin is in force; `oarlock push FILE` installs one".to_owned(),
        (_, false) => format!("name one of {}", list(kinds)),
    };
    Problem { error, help }
}

fn unknown_plugin(name: &str, in_force: &InForce, snapshot: &Snapshot, question: &Question) -> Problem {
    if let Some(plugin) = in_force.plugins.get(name) {
        return Problem {
            error: format!("plugin {name} does not reconcile {}", question.kind),
            help: format!("it reconciles {}", resource(plugin)),
        };
    }
    match standing(snapshot, name) {
        Some(standing) => Problem {
            error: format!("plugin {name} is not in force: {}: {}", standing.reason, standing.message),
            help: format!("see `kubectl describe plugin {name}`"),
        },
        None => Problem {
            error: format!("there is no plugin {name}"),
            help: "list them with `oarlock get plugins`".to_owned(),
        },
    }
}

fn unknown_object(
    plugins: &[Arc<ActivePlugin>],
    snapshot: &Snapshot,
    namespace: Option<&str>,
    question: &Question,
) -> Problem {
    let kind = resource(&plugins[0]);
    let name = &question.name;
    let unlisted = plugins.iter().find(|plugin| !snapshot.is_synced(&plugin.parents));
    let (place, option) = namespace.map_or_else(Default::default, |namespace| {
        (format!(" in namespace {namespace}"), format!(" -n {namespace}"))
    });
    if let Some(plugin) = unlisted {
        let says = standing(snapshot, &plugin.name)
            .map(|standing| format!(": {}: {}", standing.reason, standing.message))
            .unwrap_or_default();
        return Problem {
            error: format!("{kind} are not listed yet; plugin {} waits{says}", plugin.name),
            help: format!("see `kubectl describe plugin {}`", plugin.name),
        };
    }
    let selection = &plugins[0].parents.scope;
    let selected = match (&selection.namespace, &selection.label_selector) {
        (None, None) => String::new(),
        (namespace, labels) => {
            let namespace = namespace.as_ref().map(|namespace| format!(" in namespace {namespace}"));
            let labels = labels.as_ref().map(|labels| format!(" with labels {labels}"));
            format!(
                "; plugin {} looks at those{}{} only",
                plugins[0].name,
                namespace.unwrap_or_default(),
                labels.unwrap_or_default()
            )
        }
    };
    Problem {
        error: format!("the host sees no {name} among {kind}{place}{selected}"),
        help: format!("does it exist? `kubectl get {kind} {name}{option}`; name another namespace with -n"),
    }
}

/// Plugins that do not serve, and why.
fn waiting(snapshot: &Snapshot) -> Vec<String> {
    let plugins = snapshot.list(&plugins_watch(), None);
    let said = plugins.filter_map(|plugin| Some((&plugin.key.name, answer::standing(plugin)?)));
    said.filter(|(_, standing)| standing.status != "True")
        .map(|(name, standing)| format!("{name} ({}: {})", standing.reason, standing.message))
        .collect()
}

fn list(names: BTreeSet<String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// When a parent is looked at next. `queue_now` and `now` are the same moment.
fn next(look: Option<Look>, queue_now: Duration, now: Timestamp) -> Next {
    let at = |time: Duration| {
        let signed = |time| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        now.checked_add(signed(time).saturating_sub(signed(queue_now))).ok().map(text)
    };
    let Some(Look { waits, triggers, failures }) = look else {
        return Next { when: NextWhen::OnChange, at: None, triggers: Vec::new(), failures: 0 };
    };
    let (when, at) = match waits {
        Waits::Result => (NextWhen::Now, None),
        Waits::Worker { since } => (NextWhen::Due, at(since)),
        Waits::Requeue { until } => (NextWhen::Requeue, at(until)),
        Waits::BackOff { until } => (NextWhen::BackOff, at(until)),
    };
    let triggers = triggers.into_iter().map(|trigger| trigger.as_str().to_owned()).collect();
    Next { when, at, triggers, failures }
}

/// RFC 3339 in UTC with milliseconds: several passes may begin in one second.
fn text(time: Timestamp) -> String {
    format!("{time:.3}")
}

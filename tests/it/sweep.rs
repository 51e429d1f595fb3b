//! The host dies after each of its writes, or never hears what became of it, and everything ends as if it had not
//! (F27, F28).
//!
//! A scenario runs once without faults, which tells its writes and its end. Then it runs again for each of those
//! writes: the write takes effect, its answer is lost, nothing else is written, and the host is killed and started
//! again. And once more for each: the answer is lost, and the host lives. Every run must come to the same end, make
//! and delete each child as often, and delete nothing before what is planned is in place.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oarlock_tests::eventually;
use oarlock_tests::host::{Host, Options};
use oarlock_tests::proxy::{Fault, Proxy, Rule, Seen, Standing};
use serde_json::{Value, json};

use crate::world::{Lab, World, grant, kubectl, says, string};

/// The kinds of which there are children.
const KINDS: [&str; 3] = ["ConfigMap", "Service", "Gadget"];
/// The verbs that change objects, as the proxy tells them apart.
const WRITES: &[&str] = &["create", "update", "apply", "patch", "delete", "deletecollection"];
/// How long the host may take to the write that it is to die after: it goes there straight.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn kill_after_any_write_of_a_new_object_loses_and_doubles_nothing() -> Result<()> {
    sweep(Scenario::Create).await
}

#[tokio::test]
async fn kill_after_any_write_of_an_update_loses_and_doubles_nothing() -> Result<()> {
    sweep(Scenario::Update).await
}

#[tokio::test]
async fn kill_after_any_write_of_a_replacement_replaces_once() -> Result<()> {
    sweep(Scenario::Replace).await
}

#[tokio::test]
async fn kill_after_any_write_of_a_rolling_replacement_goes_on_with_the_next() -> Result<()> {
    sweep(Scenario::Roll).await
}

#[tokio::test]
async fn kill_after_any_write_of_a_deletion_leaves_neither_object_nor_children() -> Result<()> {
    sweep(Scenario::Delete).await
}

#[tokio::test]
async fn kill_after_any_write_of_fields_that_are_taken_leaves_theirs_alone() -> Result<()> {
    sweep(Scenario::Take).await
}

#[tokio::test]
async fn kill_after_any_write_of_fields_that_are_given_back_leaves_nothing_of_ours() -> Result<()> {
    sweep(Scenario::GiveBack).await
}

#[tokio::test]
async fn kill_after_any_write_of_a_version_that_adds_a_kind_does_not_forget_that_kind() -> Result<()> {
    sweep(Scenario::AddKind).await
}

#[tokio::test]
async fn kill_after_any_write_of_a_version_that_drops_a_kind_leaves_nothing_of_that_kind() -> Result<()> {
    sweep(Scenario::DropKind).await
}

/// What happens to an object, from one state at rest to the next.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// It appears; its plugin finalizes.
    Create,
    /// Its plan has one child less, one more, and one that differs.
    Update,
    /// A child changes that must be replaced for it, and one of a later wave is new.
    Replace,
    /// Two children change that must be replaced for it, one after the other.
    Roll,
    /// It is deleted; its plugin keeps a child of another plan until it is told to let go.
    Delete,
    /// Its plan owns a field of somebody else's object, and then another one instead.
    Take,
    /// It is deleted, and owns fields of somebody else's object.
    GiveBack,
    /// A version of its plugin comes that knows one more kind of children; the next that knows none leaves none.
    AddKind,
    /// A version of its plugin comes that no longer knows a kind of its children.
    DropKind,
}

/// Without waiting for what the host makes of it.
async fn push(world: &World, component: &str) -> Result<()> {
    let component = oarlock_tests::host::component(component)?;
    world.source("widget", &[("plugin.wasm", &component)]).await
}

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

/// One that nobody may change.
fn fixed(name: &str, text: &str, update: &str) -> Value {
    let mut fixed = config_map(name, text);
    fixed["metadata"]["annotations"] = json!({"oarlock.dev/update": update});
    fixed["immutable"] = true.into();
    fixed
}

/// A field of an object that is somebody else's.
fn field(name: &str, field: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "annotations": {"oarlock.dev/ownership": "fields"}}, "data": {field: "1"},
    })
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}], "selector": {"app": "none"}},
    })
}

fn gadget(name: &str) -> Value {
    json!({"apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": {"n": 1}})
}

impl Scenario {
    fn component(self) -> &'static str {
        match self {
            Self::AddKind | Self::Take | Self::GiveBack => "widget",
            Self::DropKind => "widget-gadgets",
            Self::Create | Self::Update | Self::Replace | Self::Roll | Self::Delete => "widget-finalizes",
        }
    }

    /// Whether it is about all objects of the plugin.
    fn is_swap(self) -> bool {
        matches!(self, Self::AddKind | Self::DropKind)
    }

    /// Brings the object to where it begins.
    async fn prepare(self, world: &World, name: &str) -> Result<()> {
        let [a, b] = ["a", "b"].map(|child| format!("{name}-{child}"));
        let plan = match self {
            Self::Create => return Ok(()),
            Self::Update => json!({"children": [config_map(&a, "one"), config_map(&b, "one")]}),
            Self::Replace => json!({"children": [fixed(&a, "one", "replace")]}),
            Self::Roll => json!({"children": [fixed(&a, "one", "rolling"), fixed(&b, "one", "rolling")]}),
            Self::Delete => json!({"children": [config_map(&a, "one"), service(&b)]}),
            Self::Take | Self::GiveBack => {
                let theirs = json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": b}, "data": {"theirs": "x"},
                });
                world.apply(&theirs, "somebody").await?;
                let child = if matches!(self, Self::Take) { "first" } else { "ours" };
                json!({"children": [config_map(&a, "one"), field(&b, child)]})
            }
            Self::AddKind => {
                world.delete_plugin("widget").await?;
                world.plugin("widget", self.component()).await?;
                let plan = json!({"children": [config_map(&a, "one"), gadget(&b)]});
                world.set("Widget", name, json!({"plan": plan})).await?;
                return world.until_says("Widget", name, ["Ready", "False", "InvalidPlan"]).await.map(drop);
            }
            Self::DropKind => {
                world.plugin("widget", self.component()).await?;
                json!({"children": [config_map(&a, "one"), gadget(&b)]})
            }
        };
        world.set("Widget", name, json!({"plan": plan, "finalize": "wait"})).await?;
        world.until_says("Widget", name, ["Ready", "True", "ChildrenReady"]).await.map(drop)
    }

    /// What somebody does.
    async fn begin(self, world: &World, name: &str) -> Result<()> {
        let [a, b, c] = ["a", "b", "c"].map(|child| format!("{name}-{child}"));
        let children = match self {
            Self::Create => vec![config_map(&a, "one"), service(&b)],
            Self::Update => vec![config_map(&a, "two"), config_map(&c, "two")],
            Self::Replace => {
                let mut later = config_map(&c, "two");
                later["metadata"]["annotations"] = json!({"oarlock.dev/wave": "1"});
                vec![fixed(&a, "two", "replace"), later]
            }
            Self::Roll => vec![fixed(&a, "two", "rolling"), fixed(&b, "two", "rolling")],
            Self::Take => vec![config_map(&a, "two"), field(&b, "second")],
            Self::Delete | Self::GiveBack => return world.delete("Widget", name).await,
            Self::AddKind => return push(world, "widget-gadgets").await,
            Self::DropKind => return push(world, "widget-fewer").await,
        };
        let plan = json!({"children": children, "labels": {"cases.example.com/seen": "true"}, "status": {"note": "ok"}});
        world.set("Widget", name, json!({"plan": plan, "finalize": "wait"})).await.map(drop)
    }

    /// What somebody does once what is there says so.
    async fn go_on(self, world: &World, name: &str) -> Result<()> {
        if matches!(self, Self::Delete)
            && let Some(widget) = world.find("Widget", name).await?
            && says(&widget, "Ready", "False", "Deleting").is_ok()
            && widget["metadata"]["annotations"]["release"].is_null()
        {
            let released = json!({"metadata": {"annotations": {"release": "true"}}});
            world.merge("Widget", name, released).await?;
        }
        Ok(())
    }

    /// Whether it has come to its end, the same in every run.
    fn is_over(self, world: &Value) -> Result<()> {
        let widget = &world["Widget"];
        match self {
            Self::Delete => ensure!(*world == json!({}), "{world:#}"),
            Self::GiveBack => {
                let theirs = &world["ConfigMap NAME-b"];
                let is_free =
                    theirs["data"] == json!({"theirs": "x"}) && !theirs.to_string().contains("oarlock");
                ensure!(is_free && world.as_object().is_some_and(|all| all.len() == 1), "{world:#}");
            }
            Self::Take | Self::Create | Self::Update | Self::Replace | Self::Roll => {
                says(widget, "Ready", "True", "ChildrenReady")?;
                ensure!(widget["status"]["note"] == "ok", "{widget:#}");
            }
            Self::AddKind => says(widget, "Ready", "True", "ChildrenReady")?,
            Self::DropKind => {
                says(widget, "Ready", "True", "ChildrenReady")?;
                ensure!(world.as_object().is_some_and(|objects| objects.len() == 1), "{world:#}");
            }
        }
        Ok(())
    }

    /// Whether it begins with a failure of this reason.
    fn is_told(self, reason: &str) -> bool {
        matches!(self, Self::AddKind) && reason == "InvalidPlan"
    }

    /// What must have been applied, and how often, before anything is deleted.
    fn goes_before_deletes(self) -> &'static [(&'static str, usize)] {
        match self {
            Self::Update => &[("ConfigMap NAME-a", 2), ("ConfigMap NAME-c", 1)],
            Self::Delete => &[("ConfigMap NAME-bye", 1)],
            Self::Create
            | Self::Replace
            | Self::Roll
            | Self::Take
            | Self::GiveBack
            | Self::AddKind
            | Self::DropKind => &[],
        }
    }
}

/// How often the host made and deleted each child.
type Counts = BTreeMap<String, (usize, usize)>;

/// What came of a run.
struct End {
    objects: Value,
    counts: Counts,
}

async fn sweep(scenario: Scenario) -> Result<()> {
    let lab = Lab::enter(&format!("sweep-{scenario:?}").to_lowercase()).await?;
    let world = &lab.world;
    let gadgets = format!("{}/tests/guests/widget/gadget.yaml", crate::world::REPOSITORY);
    kubectl(world.plane, ["apply", "--server-side", "--force-conflicts", "-f", &gadgets], None)?;
    grant(world.plane, "widget-gadgets")?;
    let proxy = Proxy::start(world.plane, 27).await?;
    // An Event that is lost or doubled is a pity, and no state: they pass by, uncounted.
    let _events = proxy.rule(Rule { resource: "events", ..Rule::every(Fault::Delay(Duration::ZERO)) });
    let mut run = Run { scenario, world, proxy: &proxy, host: Some(start(world, &proxy).await?) };
    world.plugin("widget", scenario.component()).await?;

    let (whole, writes) = run.undisturbed("whole").await?;
    ensure!(writes > 2, "only {writes} writes");
    let mut missed = Vec::new();
    for fault in ["killed", "unheard"] {
        for number in 0..writes {
            let name = format!("{fault}-{number}");
            let disturbed = run.disturbed(&name, fault == "killed", number, &whole).await;
            let is_hit = disturbed.with_context(|| format!("{fault} after write {number} of {writes}"))?;
            if !is_hit {
                missed.push(name);
            }
        }
    }
    // Two writes of one second may have been one.
    ensure!(missed.len() <= 2, "of {writes} writes there was none at {missed:?}");

    // What is still to come would have come by now.
    world.until_at_rest().await?;
    for fault in ["killed", "unheard"] {
        for number in 0..writes {
            let name = format!("{fault}-{number}");
            run.check(&name, &whole).await.with_context(|| format!("{name} at last"))?;
        }
    }
    // A fault of the API server, or of the host, is nobody's whom an Event could tell to mend it.
    let told = world.list("Event", None).await?;
    let mut warnings = told.iter().filter(|event| event["type"] == "Warning");
    let blamed = warnings.find(|event| {
        let reason = string(event, "/reason");
        !["ApiUnavailable", "Conflict"].contains(&reason) && !scenario.is_told(reason)
    });
    ensure!(blamed.is_none(), "{blamed:#?}");
    let host = run.host.take().context("no host runs")?;
    host.stop().await
}

async fn start(world: &World, proxy: &Proxy) -> Result<Host> {
    let options = Options { kubeconfig: proxy.kubeconfig(), ..Options::standard(world.plane) };
    let host = Host::start(world.plane, &options)?;
    host.ready().await?;
    Ok(host)
}

struct Run<'a> {
    scenario: Scenario,
    world: &'a World,
    proxy: &'a Proxy,
    /// Absent between its death and its next start.
    host: Option<Host>,
}

impl Run<'_> {
    /// The end of a run without faults, and the number of its writes.
    async fn undisturbed(&self, name: &str) -> Result<(End, usize)> {
        self.scenario.prepare(self.world, name).await?;
        self.world.until_at_rest().await?;
        let from = self.proxy.seen().len();
        self.scenario.begin(self.world, name).await?;
        self.until_over(name, |_| Ok(())).await?;
        self.world.until_at_rest().await?;
        let mut writes = self.proxy.seen().split_off(from);
        writes.retain(is_write);
        // That a child must be replaced is known from the refusal of its change, and of a trial under its name.
        let is_told = |seen: &Seen| {
            matches!(self.scenario, Scenario::Replace | Scenario::Roll)
                && (seen.code == Some(422) || seen.option("dryRun") == "All")
        };
        let refused = writes.iter().find(|seen| seen.code.is_none_or(|code| code >= 300) && !is_told(seen));
        ensure!(refused.is_none(), "refused without a fault: {refused:?}");
        let writes = writes.len();
        let objects = self.objects(name).await?;
        self.tidy(name).await?;
        Ok((End { objects, counts: self.counts(name) }, writes))
    }

    /// A run with a fault at the write of this number; false if there was none.
    async fn disturbed(&mut self, name: &str, kill: bool, number: usize, whole: &End) -> Result<bool> {
        let world = self.world;
        self.scenario.prepare(world, name).await?;
        let from = self.proxy.seen().len();
        let rules = self.arm(kill, number);
        self.scenario.begin(world, name).await?;
        let hit = eventually(SOON, "the write that is not answered", async || {
            self.scenario.go_on(world, name).await?;
            let seen = self.proxy.seen();
            let is_hit = seen[from..].iter().any(|seen| is_unheard(seen) && seen.code.is_some());
            ensure!(is_hit, "{:?}", seen[from..].iter().filter(|seen| is_write(seen)).collect::<Vec<_>>());
            anyhow::Ok(())
        });
        let hit = hit.await;
        if kill {
            self.host.take().context("no host runs")?.kill()?;
        }
        drop(rules);
        if kill {
            self.host = Some(start(world, self.proxy).await?);
        }
        self.until_over(name, |objects| {
            ensure!(*objects == whole.objects, "{objects:#}\nis not\n{:#}", whole.objects);
            Ok(())
        })
        .await?;
        self.tidy(name).await?;
        Ok(hit.is_ok())
    }

    /// Lets so many writes pass, and answers the next one never.
    fn arm(&self, kill: bool, number: usize) -> Vec<Standing> {
        let next = Rule { verbs: WRITES, skip: number, ..Rule::every(Fault::DropAfter) };
        if !kill {
            return vec![self.proxy.rule(Rule { times: Some(1), ..next })];
        }
        // What else is on its way when the host dies is not sent.
        let unheard = Rule { times: Some(1), fault: Fault::HangAfter, ..next.clone() };
        vec![self.proxy.rule(unheard), self.proxy.rule(Rule { fault: Fault::HangBefore, ..next })]
    }

    async fn until_over(&self, name: &str, check: impl Fn(&Value) -> Result<()>) -> Result<()> {
        self.world
            .eventually(&format!("{name} is over"), async || {
                self.scenario.go_on(self.world, name).await?;
                let objects = self.objects(name).await?;
                self.scenario.is_over(&objects)?;
                check(&objects)
            })
            .await
    }

    /// A swap is about every object: what is left of one run would take part in the next.
    async fn tidy(&self, name: &str) -> Result<()> {
        if !self.scenario.is_swap() {
            return Ok(());
        }
        if matches!(self.scenario, Scenario::AddKind) {
            push(self.world, "widget-fewer").await?;
            self.until_over(name, |objects| Scenario::DropKind.is_over(objects)).await?;
        }
        self.world.delete("Widget", name).await?;
        self.world.until_gone("Widget", name).await
    }

    /// Fails unless this run has come to the same end as the whole one.
    async fn check(&self, name: &str, whole: &End) -> Result<()> {
        if !self.scenario.is_swap() {
            let objects = self.objects(name).await?;
            ensure!(objects == whole.objects, "{objects:#}\nis not\n{:#}", whole.objects);
        }
        let counts = self.counts(name);
        ensure!(counts == whole.counts, "made and deleted {counts:?}, not {:?}", whole.counts);
        self.check_order(name)
    }

    /// The object and its children, without what differs from run to run.
    async fn objects(&self, name: &str) -> Result<Value> {
        let mut objects = serde_json::Map::new();
        let widget = self.world.find("Widget", name).await?;
        let uid = widget.as_ref().map(|widget| string(widget, "/metadata/uid").to_owned());
        let mut found: Vec<_> = widget.into_iter().map(|widget| ("Widget".to_owned(), widget)).collect();
        for kind in KINDS {
            // All of them: nothing that is not ours may change either.
            for child in self.world.list(kind, None).await? {
                let child_name = string(&child, "/metadata/name").to_owned();
                if child_name.starts_with(&format!("{name}-")) {
                    found.push((format!("{kind} {child_name}"), child));
                }
            }
        }
        for (key, mut object) in found {
            let metadata = &mut object["metadata"];
            for varying in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
                if let Some(metadata) = metadata.as_object_mut()
                    && (varying != "generation" || key != "Widget")
                {
                    metadata.remove(varying);
                }
            }
            for varying in
                ["/metadata/labels/oarlock.dev~1shard", "/metadata/annotations/oarlock.dev~1applied"]
            {
                if let Some(value) = object.pointer_mut(varying) {
                    *value = "SET".into();
                }
            }
            for (annotation, value) in object["metadata"]["annotations"].as_object_mut().into_iter().flatten()
            {
                if annotation.starts_with("oarlock.dev/fields-") {
                    *value = "SET".into();
                }
            }
            for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
                condition["lastTransitionTime"] = "THEN".into();
            }
            let mut text = object.to_string().replace(&format!("{name}-"), "NAME-");
            text = text.replace(&format!("\"{name}\""), "\"NAME\"");
            if let Some(uid) = &uid {
                text = text.replace(&**uid, "UID");
            }
            objects.insert(key.replace(&format!("{name}-"), "NAME-"), serde_json::from_str(&text)?);
        }
        Ok(objects.into())
    }

    /// The host's writes of the children of an object: `ConfigMap NAME-a`, and which.
    fn writes(&self, name: &str) -> Vec<(String, Seen)> {
        let of_child = |seen: Seen| {
            let kind = KINDS.into_iter().find(|kind| seen.resource == format!("{}s", kind.to_lowercase()))?;
            let child = seen.name.strip_prefix(&format!("{name}-"))?.to_owned();
            (seen.namespace == self.world.namespace && is_write(&seen))
                .then(|| (format!("{kind} NAME-{child}"), seen))
        };
        self.proxy.seen().into_iter().filter_map(of_child).collect()
    }

    fn counts(&self, name: &str) -> Counts {
        let mut counts = Counts::new();
        for (child, seen) in self.writes(name) {
            let (made, deleted) = counts.entry(child).or_default();
            *made += usize::from(seen.code == Some(201));
            *deleted += usize::from(seen.verb == "delete" && seen.code == Some(200));
        }
        counts
    }

    /// Fails if something was deleted before what is planned was in place.
    fn check_order(&self, name: &str) -> Result<()> {
        let writes = self.writes(name);
        let Some(deleted) = writes.iter().position(|(_, seen)| seen.verb == "delete") else { return Ok(()) };
        for (child, times) in self.scenario.goes_before_deletes() {
            let is_applied = |(written, seen): &&(String, Seen)| {
                written == child && seen.verb == "apply" && seen.code.is_some_and(|code| code < 300)
            };
            ensure!(
                writes[..deleted].iter().filter(is_applied).count() >= *times,
                "{} was deleted before {child} was in place: {writes:?}",
                writes[deleted].0
            );
        }
        Ok(())
    }
}

fn is_write(seen: &Seen) -> bool {
    WRITES.contains(&&*seen.verb) && seen.resource != "events"
}

fn is_unheard(seen: &Seen) -> bool {
    matches!(seen.fault, Some(Fault::HangAfter | Fault::DropAfter))
}

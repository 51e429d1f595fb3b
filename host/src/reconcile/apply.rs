//! Stage 3: what the plan says is made so, and what it no longer says goes.

use super::{Error, Pass, Reconciler};
use crate::{
    act::{
        apply, fields,
        prune::{self, Complete, Pruned},
    },
    decide::plan::{Child, Plan},
    object::ObjectKey,
    observe::reads::{Planned, Sources},
    report::Report,
};
use std::time::Duration;

/// How often an object is looked for that no watch tells of: whether one has appeared of which fields are to be
/// owned, whether one has gone in whose place a child comes.
const UNWATCHED: Duration = Duration::from_secs(10);

impl Reconciler {
    /// Stage 3: children by server-side apply, then prune, only after all of them are in place (rule A6).
    pub(super) async fn apply(
        &self,
        pass: &mut Pass,
        planned: &Planned,
        report: &mut Report,
    ) -> Result<(), Error> {
        let context = apply::Context {
            client: &self.client,
            discovery: &self.discovery,
            cache: &self.cache,
            snapshot: &pass.snapshot,
            sources: &pass.plugin.sources,
            plugin: &pass.plugin.name,
            parent: &pass.parent,
            contests: &self.contests,
            now: tokio::time::Instant::now().into_std(),
        };
        let metadata = apply::parent::metadata(context, &pass.plugin.parent_kind, &planned.plan).await;
        let applied = apply::children(context, &planned.plan).await;
        self.metrics.applied(&pass.plugin.name, &applied);
        self.watch_more(pass, &planned.plan);
        // Whoever deletes the parent may ask to keep its children: then it carries this finalizer of the garbage
        // collector (rule D5).
        let is_orphaning =
            pass.parent.is_terminating() && pass.parent.finalizers.iter().any(|one| &**one == "orphan");
        self.undo_if_ended(pass, context).await?;
        let is_applied = applied.is_complete();
        let pruned = match Complete::proven(&planned.plan, &applied) {
            Some(complete) => {
                let may_prune = || {
                    let probation = pass.plugin.probation.as_ref().filter(|_| !pass.parent.is_terminating());
                    let may_prune = probation.is_none_or(|probation| probation.may_prune(&pass.parent.key));
                    if !may_prune {
                        self.pending.add(&pass.plugin.name);
                    }
                    may_prune
                };
                prune::children(context, complete, is_orphaning, may_prune).await
            }
            None => Pruned::default(),
        };
        applied.written.iter().for_each(|object| pass.after.wrote(object));
        applied.replaced.iter().chain(&pruned.deleted).for_each(|object| pass.after.leave_out(object));
        pruned.given_back.iter().for_each(|object| pass.after.wrote(object));
        report.created = applied.created;
        report.updated = applied.updated;
        report.updated.extend(pruned.given_back.iter().map(|object| object.key.clone()));
        report.unchanged = applied.unchanged;
        report.replaced = applied.replaced.iter().map(|object| object.key.clone()).collect();
        report.pruned = pruned.deleted.iter().map(|object| object.key.clone()).collect();
        let awaits_others = |(key, _): &(ObjectKey, String)| {
            planned.plan.children.iter().any(|child| child.options.fields && child.key == *key)
        };
        // One that is adopted, or whose label somebody took off, was found by looking; one whose owner somebody took off
        // tells nobody when it goes.
        let is_unwatched = |key: &ObjectKey| {
            let watch = pass.plugin.sources.children.get(&key.gvk).map(|(watch, _)| watch);
            let found = watch.and_then(|watch| pass.snapshot.get(watch, key.namespace.as_deref(), &key.name));
            let owner = found.and_then(|object| object.controller());
            owner.is_none_or(|owner| owner.uid != pass.parent.uid)
        };
        if applied.held.iter().any(awaits_others) || applied.awaited.iter().any(is_unwatched) {
            report.look_within(UNWATCHED);
        }
        pass.held = applied.held;
        pass.held.extend(pruned.held);
        report.metadata_written = matches!(metadata, Ok(true));
        if !applied.failed.is_empty() {
            return Err(Error::Apply(applied.failed));
        }
        metadata.map_err(Error::Metadata)?;
        if let Some(error) = pruned.error {
            return Err(Error::Prune(error));
        }
        let is_needed = pass.plugin.manifest.finalizes || planned.plan.needs_finalizer();
        if !pass.parent.is_terminating() && !is_needed && is_applied && pass.held.is_empty() {
            self.release(pass, report).await.map_err(Error::Finalizer)?;
        }
        Ok(())
    }

    /// Has kinds watched that the plan itself has brought, or of whose objects it owns fields for the first time.
    fn watch_more(&self, pass: &Pass, plan: &Plan) {
        let Sources { children, fields: of_fields, .. } = &*pass.plugin.sources;
        let is_watched = |child: &&Child| {
            let gvk = &child.key.gvk;
            if child.options.fields { of_fields.contains_key(gvk) } else { children.contains_key(gvk) }
        };
        let unwatched: Vec<_> = plan.children.iter().filter(|child| !is_watched(child)).collect();
        if !unwatched.is_empty() {
            let of_fields = unwatched.iter().filter(|child| child.options.fields);
            pass.plugin.field_kinds.add(of_fields.map(|child| child.key.gvk.clone()));
            self.pending.add(&pass.plugin.name);
        }
    }

    /// The plugin may have ended meanwhile, and looked for fields before these were there.
    async fn undo_if_ended(&self, pass: &Pass, context: apply::Context<'_>) -> Result<(), Error> {
        let in_force = self.registry.now();
        if in_force.plugins.get(&pass.plugin.name).is_none_or(|now| now.parents != pass.plugin.parents) {
            let snapshot = self.cache.snapshot();
            let context = apply::Context { snapshot: &snapshot, ..context };
            if let (_, Some(error)) = fields::give_back(context, |_| false).await {
                return Err(Error::Prune(error));
            }
        }
        Ok(())
    }
}

//! A plugin's kinds: as the API server serves them, or what is awaited.

use super::{Error, Rollout, say};
use crate::{
    manifest::Manifest,
    object::Gvk,
    observe::{
        client::Answer,
        discovery::Kind,
        reads::Sources,
        watch::{WatchKey, WatchState},
    },
    plugins::{Obstacle, children_watch, fields_watch, selection_watch},
    report::Reason,
};
use std::{collections::BTreeSet, sync::Arc};

#[derive(Default)]
pub(super) struct Resolved {
    /// Every watch it wants.
    pub(super) watches: BTreeSet<WatchKey>,
    /// Those of them that it does not wait for: kinds that are not served, and that its own plans may bring.
    pub(super) brought: BTreeSet<WatchKey>,
    /// Those of them whose kinds are served again, or at last, and that have yet to notice.
    pub(super) returning: BTreeSet<WatchKey>,
    /// What stands against serving, until somebody mends it.
    pub(super) obstacle: Option<Obstacle>,
    /// The parent kind, and those of the others that are served.
    pub(super) ready: Option<(Arc<Kind>, Sources)>,
}

enum Use {
    Parent,
    Child,
    Fields,
    Read,
}

impl Rollout {
    /// Resolves every kind of a plugin; what is not served, or cannot serve, is not an error but waited for.
    pub(super) async fn resolve(
        &self,
        name: &Arc<str>,
        manifest: &Manifest,
        kinds: &BTreeSet<Gvk>,
        field_kinds: &BTreeSet<Gvk>,
    ) -> Result<Resolved, Error> {
        let mut resolved = Resolved::default();
        let mut sources = Sources::new(name.clone());
        let mut parent_kind = None;
        let parent = [(&manifest.parent.gvk, selection_watch(&manifest.parent), Use::Parent)];
        let children = kinds.iter().map(|gvk| (gvk, children_watch(gvk), Use::Child));
        let fields = field_kinds.iter().map(|gvk| (gvk, fields_watch(gvk), Use::Fields));
        let reads = manifest.reads.iter().map(|read| (&read.gvk, selection_watch(read), Use::Read));
        for (gvk, watch, r#use) in parent.into_iter().chain(children).chain(fields).chain(reads) {
            let kind = match self.discovery.kind(gvk).await {
                Ok(kind) => kind,
                // A kind that an earlier version applied and that is gone has no children left.
                Err(error) if error.answer == Answer::KindNotFound => {
                    if matches!(r#use, Use::Child)
                        && manifest.children.contains(gvk)
                        && manifest.brings_kinds()
                    {
                        resolved.brought.insert(watch.clone());
                        resolved.watches.insert(watch);
                    } else if matches!(r#use, Use::Parent | Use::Read) || manifest.children.contains(gvk) {
                        resolved.obstacle.get_or_insert_with(|| say::missing(gvk));
                        resolved.watches.insert(watch);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            if watch.scope.namespace.is_some() && !kind.namespaced {
                resolved.obstacle = Some(say::narrowed_in_vain(gvk));
                continue;
            }
            if self.watches.retry(&watch) {
                resolved.returning.insert(watch.clone());
            }
            match r#use {
                Use::Parent => parent_kind = Some(kind),
                Use::Child => drop(sources.children.insert(gvk.clone(), (watch.clone(), kind.namespaced))),
                Use::Fields => drop(sources.fields.insert(gvk.clone(), watch.clone())),
                Use::Read => drop(sources.reads.insert(gvk.clone(), (watch.clone(), kind.namespaced))),
            }
            resolved.watches.insert(watch);
        }
        // Without one of the others it is in force all the same, to tell its parents.
        if resolved.obstacle.as_ref().is_none_or(|(reason, _)| *reason == Reason::KindMissing) {
            resolved.ready = parent_kind.map(|kind| (kind, sources));
        }
        Ok(resolved)
    }

    /// What a plugin waits for, in words: a missing or forbidden kind before one that is being listed.
    pub(super) fn waits_for(&self, unsynced: &[&WatchKey], manifest: &Manifest) -> (Reason, String) {
        let mut waits = (Reason::Syncing, "its kinds are being listed".to_owned());
        for watch in unsynced {
            let gvk = &watch.gvk;
            match self.watches.state(watch) {
                Some(WatchState::Missing(_)) => return say::missing(gvk),
                Some(WatchState::Forbidden(why)) => waits = say::forbidden(gvk, &why, manifest),
                Some(WatchState::Failing(why)) if waits.0 == Reason::Syncing => {
                    waits = (Reason::ApiUnavailable, format!("{gvk} cannot be listed: {why}"));
                }
                Some(WatchState::Listing) if waits.0 == Reason::Syncing => {
                    waits.1 = format!("{gvk} is being listed");
                }
                Some(WatchState::Failing(_) | WatchState::Listing | WatchState::Live) | None => {}
            }
        }
        waits
    }
}

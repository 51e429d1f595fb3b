//! Which of several plugins writes the status of a parent kind: the oldest (rule P5).
//!
//! Never: I/O, clocks.

use super::Known;
use crate::{object::Gvk, plugins::Registry};
use std::{collections::BTreeMap, sync::Arc};

/// The parent kind that a plugin writes the status of.
fn claim(known: &Known) -> Option<&Gvk> {
    let manifest = &known.version.as_ref()?.manifest;
    manifest.status.then_some(&manifest.parent.gvk)
}

/// Other plugins that write the status of the same parent kind, in the order in which they may: by age.
fn rivals<'a>(
    name: &'a Arc<str>,
    all: &'a BTreeMap<Arc<str>, Known>,
) -> impl Iterator<Item = (&'a Arc<str>, bool)> {
    let own = all.get(name);
    all.iter().filter_map(move |(other, known)| {
        let own = own?;
        let is_rival = other != name && claim(known).is_some() && claim(known) == claim(own);
        is_rival.then_some((other, (&known.created, other) < (&own.created, name)))
    })
}

pub(super) fn older_claim(name: &Arc<str>, all: &BTreeMap<Arc<str>, Known>) -> Option<Arc<str>> {
    rivals(name, all).find(|(_, is_older)| *is_older).map(|(rival, _)| rival.clone())
}

pub(super) fn younger_in_force(
    name: &Arc<str>,
    all: &BTreeMap<Arc<str>, Known>,
    registry: &Registry,
) -> Option<Arc<str>> {
    let in_force = registry.now();
    rivals(name, all).map(|(rival, _)| rival).find(|rival| in_force.plugins.contains_key(*rival)).cloned()
}

//! What several runs of one scenario have to have in common.

use crate::{
    api::Record,
    scenario::Scenario,
    simulation::{Failure, Ran, Rule, Setting, run},
    world::HOST,
};
use anyhow::Result;
use std::collections::BTreeMap;

/// How often each child was created and deleted, by resource and name.
pub fn counts(records: &[Record]) -> BTreeMap<(String, String), (usize, usize)> {
    let mut counts: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for change in records.iter().filter(|record| record.user == HOST).flat_map(|record| &record.changes) {
        let entry = || (change.resource.to_string(), change.key.1.clone());
        if change.resource.starts_with("events") {
            continue;
        }
        match (&change.before, &change.after) {
            (None, Some(_)) => counts.entry(entry()).or_default().0 += 1,
            (Some(_), None) => counts.entry(entry()).or_default().1 += 1,
            _ => {}
        }
    }
    counts
}

/// Runs a scenario twice, and if it is paced once without its faults; the first run, with whatever is wrong.
///
/// # Errors
/// There is no runtime.
pub fn examine(setting: &Setting, scenario: &Scenario) -> Result<Ran> {
    let mut first = run(setting, scenario)?;
    if first.failure.is_some() {
        return Ok(first);
    }
    let second = run(setting, scenario)?;
    if let Some(difference) = crate::trace::difference(&first, &second) {
        first.failure = Some(Failure::new(Rule::Determined, format!("two runs differ: {difference}")));
        return Ok(first);
    }
    if scenario.is_paced {
        let without = run(setting, &scenario.without_faults())?;
        if let Some(failure) = without.failure {
            let text = format!("without faults: {}", failure.text);
            first.failure = Some(Failure { text, ..failure });
            return Ok(first);
        }
        let (with, without) = (counts(&first.records), counts(&without.records));
        if with != without {
            let differ = with.iter().filter(|(child, count)| without.get(*child) != Some(*count));
            let missing = without.iter().filter(|(child, _)| !with.contains_key(*child));
            let failure = format!(
                "created and deleted otherwise than without faults: {:?}; without faults {:?}",
                differ.chain(missing).collect::<Vec<_>>(),
                without
            );
            first.failure = Some(Failure::new(Rule::Counted, failure));
        }
    }
    Ok(first)
}

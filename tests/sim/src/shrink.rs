//! Makes a failing scenario as small as it gets.

use crate::{
    examine::examine,
    scenario::Scenario,
    simulation::{Ran, Setting},
};
use anyhow::Result;
use std::time::Duration;

/// Leaves out steps, many at first and then one by one, for as long as the run breaks the same rule; then the time
/// between them. The smallest that fails, and its run.
///
/// # Errors
/// There is no runtime.
pub fn shrink(setting: &Setting, scenario: &Scenario, failing: Ran) -> Result<(Scenario, Ran)> {
    let rule = failing.failure.as_ref().map(|failure| failure.rule);
    let fails = |tried: &Ran| tried.failure.as_ref().map(|failure| failure.rule) == rule;
    let (mut best, mut ran) = (scenario.clone(), failing);
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut is_smaller = false;
        while at < best.steps.len() {
            let mut smaller = best.clone();
            let end = (at + size).min(smaller.steps.len());
            smaller.steps.drain(at..end);
            let tried = examine(setting, &smaller)?;
            if fails(&tried) {
                (best, ran, is_smaller) = (smaller, tried, true);
            } else {
                at += size;
            }
        }
        if size > 1 || !is_smaller {
            size /= 2;
        }
    }
    for at in 0..best.steps.len() {
        let mut smaller = best.clone();
        if std::mem::take(&mut smaller.steps[at].after) == Duration::ZERO {
            continue;
        }
        let tried = examine(setting, &smaller)?;
        if fails(&tried) {
            (best, ran) = (smaller, tried);
        }
    }
    Ok((best, ran))
}

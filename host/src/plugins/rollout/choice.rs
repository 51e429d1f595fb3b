//! Which version is to be in force, of what the source holds and what an operator and the past say (rules P2, P3).
//!
//! Never: I/O, clocks.

use crate::plugins::{
    resource::{PluginSpec, RolloutStrategy},
    source::bare,
};

/// What there is to choose from.
pub(super) struct Facts<'a> {
    /// The version that the source holds and that was accepted.
    pub(super) content: Option<&'a str>,
    /// The version in force, or that was when the host ended.
    pub(super) active: Option<&'a str>,
    /// The version that was taken back because it failed.
    pub(super) failed: Option<&'a str>,
    /// Whether the content has done well as a canary for long enough.
    pub(super) is_proven: bool,
    pub(super) spec: &'a PluginSpec,
}

/// What comes of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// To be in force.
    pub(super) serve: Option<String>,
    /// The content, if it is to wait or to be tried first.
    pub(super) candidate: Option<RolloutStrategy>,
    /// Whether an operator has named this version: nothing holds it back.
    pub(super) is_approved: bool,
    /// The only version that may come into force, where the source holds another.
    pub(super) pinned: Option<String>,
}

pub(super) fn choose(facts: &Facts<'_>) -> Choice {
    let Facts { content, active, failed, is_proven, spec } = *facts;
    let serve = |digest: Option<&str>| Choice { serve: digest.map(str::to_owned), ..Choice::default() };
    let approved = spec.approved.as_deref().map(bare);
    let pin = spec.digest.as_deref().map(bare);
    if let Some(pin) = pin.filter(|pin| content != Some(pin)) {
        let pinned = content.is_some().then(|| pin.to_owned());
        return Choice { is_approved: true, pinned, ..serve(Some(pin)) };
    }
    let rollback = spec.rollback.as_ref().map(|one| (bare(&one.from), bare(&one.to)));
    if let Some((_, to)) = rollback.filter(|(from, _)| content.is_none_or(|content| content == *from)) {
        return Choice { is_approved: true, ..serve(Some(to)) };
    }
    let Some(content) = content else { return serve(active) };
    let is_approved = approved == Some(content) || pin == Some(content);
    let waits = |candidate| Choice { candidate: Some(candidate), ..serve(active) };
    if is_approved || active == Some(content) {
        return Choice { is_approved, ..serve(Some(content)) };
    }
    match spec.rollout {
        _ if failed == Some(content) => serve(active),
        RolloutStrategy::Preview => waits(RolloutStrategy::Preview),
        RolloutStrategy::Canary if active.is_some() && !is_proven => waits(RolloutStrategy::Canary),
        RolloutStrategy::Canary | RolloutStrategy::Automatic => serve(Some(content)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::resource::Rollback;

    fn check(content: &str, active: &str, spec: &PluginSpec, expected: (&str, Option<RolloutStrategy>)) {
        let some = |text: &'static str| Some(text).filter(|text| !text.is_empty());
        let leak = |text: &str| -> &'static str { String::leak(text.to_owned()) };
        let facts = Facts {
            content: some(leak(content)),
            active: some(leak(active)),
            failed: Some("bad"),
            is_proven: false,
            spec,
        };
        let choice = choose(&facts);
        assert_eq!(
            (choice.serve.as_deref(), choice.candidate),
            (some(leak(expected.0)), expected.1),
            "{content} over {active} with {spec:?}"
        );
    }

    #[test]
    fn new_content_comes_into_force_as_the_strategy_says() {
        let spec = |rollout| PluginSpec { rollout, ..PluginSpec::default() };
        let approved = |rollout| PluginSpec { approved: Some("sha256:new".to_owned()), ..spec(rollout) };
        for rollout in [RolloutStrategy::Automatic, RolloutStrategy::Preview, RolloutStrategy::Canary] {
            check("old", "old", &spec(rollout), ("old", None));
            check("new", "old", &approved(rollout), ("new", None));
            check("", "old", &spec(rollout), ("old", None));
            check("", "", &spec(rollout), ("", None));
            check("bad", "old", &spec(rollout), ("old", None));
        }
        check("new", "old", &spec(RolloutStrategy::Automatic), ("new", None));
        check("new", "", &spec(RolloutStrategy::Automatic), ("new", None));
        check("new", "old", &spec(RolloutStrategy::Preview), ("old", Some(RolloutStrategy::Preview)));
        check("new", "", &spec(RolloutStrategy::Preview), ("", Some(RolloutStrategy::Preview)));
        check("new", "old", &spec(RolloutStrategy::Canary), ("old", Some(RolloutStrategy::Canary)));
        check("new", "", &spec(RolloutStrategy::Canary), ("new", None));
        let retried = PluginSpec { approved: Some("bad".to_owned()), ..PluginSpec::default() };
        check("bad", "old", &retried, ("bad", None));
    }

    #[test]
    fn rollback_holds_until_the_source_changes_and_a_pin_always() {
        let rollback = Rollback { from: "new".to_owned(), to: "old".to_owned() };
        let back = PluginSpec { rollback: Some(rollback), ..PluginSpec::default() };
        check("new", "new", &back, ("old", None));
        check("new", "old", &back, ("old", None));
        check("", "old", &back, ("old", None));
        check("newer", "old", &back, ("newer", None));
        let pin = PluginSpec { digest: Some("sha256:old".to_owned()), ..back };
        check("newer", "old", &pin, ("old", None));
        check("old", "new", &pin, ("old", None));
        let facts =
            Facts { content: Some("newer"), active: Some("old"), failed: None, is_proven: false, spec: &pin };
        assert_eq!(choose(&facts).pinned.as_deref(), Some("old"));
    }
}

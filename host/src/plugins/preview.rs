//! What a version would change, told without a write: for one object, and for all of them.

use crate::{
    act::preview::{self, Children},
    decide::{guest::Function, plan::Condition},
    object::{Object, ObjectKey},
    observe::{cache::Snapshot, client::Error, discovery::Discovery},
    plugins::ActivePlugin,
    report::chain,
};
use serde::Deserialize;
use std::{
    fmt::{self, Display},
    sync::Arc,
};

/// Objects that fail and are named.
const NAMED: usize = 3;

/// What a version would change of one object.
#[derive(Debug, Default)]
pub struct Preview {
    /// Its children.
    pub children: Children,
    /// Conditions that would be other ones: the type, the status now (empty if it has none), and then.
    pub conditions: Vec<(String, String, String)>,
    /// Why there is no plan.
    pub failure: Option<String>,
}

impl Preview {
    /// Asks a version about an object, as of one moment.
    ///
    /// # Errors
    /// The API server's kinds cannot be read.
    pub async fn of(
        plugin: &ActivePlugin,
        discovery: &Discovery,
        snapshot: &Snapshot,
        parent: &Arc<Object>,
        host_namespace: &str,
        now: &str,
    ) -> Result<Self, Error> {
        if parent.is_terminating() {
            return Ok(Self::default());
        }
        let view = plugin.view(snapshot.clone(), parent.clone(), host_namespace, now);
        let plan = match plugin.ask(Function::Reconcile, view).await.0 {
            Ok(planned) => planned.plan,
            Err(unplanned) => return Ok(Self { failure: Some(chain(&unplanned)), ..Self::default() }),
        };
        let children = preview::children(discovery, snapshot, &plugin.sources, parent, &plan).await?;
        let conditions =
            if plugin.manifest.status { conditions(parent, &plan.conditions) } else { Vec::new() };
        Ok(Self { children, conditions, failure: None })
    }

    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        let Children { added, changed, removed, refused } = &self.children;
        added.is_empty()
            && changed.is_empty()
            && removed.is_empty()
            && refused.is_empty()
            && self.conditions.is_empty()
            && self.failure.is_none()
    }
}

fn conditions(parent: &Object, planned: &[Condition]) -> Vec<(String, String, String)> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        conditions: Vec<Standing>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Standing {
        r#type: String,
        status: String,
    }
    let status = parent.status.as_deref().and_then(|status| serde_json::from_str::<Status>(status).ok());
    let standing = status.unwrap_or_default().conditions;
    let differing = planned.iter().filter_map(|condition| {
        let now = standing.iter().find(|one| one.r#type == condition.r#type);
        let now = now.map(|one| one.status.clone()).unwrap_or_default();
        let then = condition.status.as_str();
        (now != then).then(|| (condition.r#type.clone(), now, then.to_owned()))
    });
    differing.collect()
}

/// What a version would change of all objects.
#[derive(Debug, Default)]
pub struct Summary {
    objects: usize,
    differing: usize,
    added: usize,
    changed: usize,
    removed: usize,
    failing: Vec<(ObjectKey, String)>,
}

impl Summary {
    /// Takes one object in.
    pub fn add(&mut self, parent: &ObjectKey, preview: &Preview) {
        let Children { added, changed, removed, .. } = &preview.children;
        self.objects += 1;
        self.differing += usize::from(!preview.is_empty());
        self.added += added.len();
        self.changed += changed.len();
        self.removed += removed.len();
        if let Some(failure) = &preview.failure {
            self.failing.push((parent.clone(), failure.clone()));
        }
    }

    /// How many objects were looked at.
    pub fn objects(&self) -> usize {
        self.objects
    }

    /// How many of them would change.
    pub fn differing(&self) -> usize {
        self.differing
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, differing, added, changed, removed, failing } = self;
        write!(
            f,
            "{differing} of {objects} objects would change: {added} children added, {changed} changed, {removed} removed"
        )?;
        if !failing.is_empty() {
            let named = failing.iter().take(NAMED).map(|(parent, why)| format!("{parent} ({why})"));
            write!(f, "; {} would fail: {}", failing.len(), named.collect::<Vec<_>>().join("; "))?;
            if failing.len() > NAMED {
                write!(f, " and {} more", failing.len() - NAMED)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decide::plan::ConditionStatus, object::Gvk};

    #[test]
    fn summary_counts_and_names_what_fails() {
        let key = |name: &str| ObjectKey {
            gvk: Gvk::new("demo/v1", "Site"),
            namespace: Some("demo".into()),
            name: name.into(),
        };
        let mut summary = Summary::default();
        summary.add(&key("a"), &Preview::default());
        let removed = Children { removed: vec![key("x"), key("y")], ..Children::default() };
        summary.add(&key("b"), &Preview { children: removed, ..Preview::default() });
        assert_eq!(
            summary.to_string(),
            "1 of 2 objects would change: 0 children added, 0 changed, 2 removed"
        );
        for name in ["c", "d", "e", "f"] {
            summary.add(&key(name), &Preview { failure: Some("panics".to_owned()), ..Preview::default() });
        }
        let said = summary.to_string();
        assert!(said.contains("5 of 6") && said.contains("4 would fail: Site demo/c (panics); "), "{said}");
        assert!(said.ends_with(" and 1 more"), "{said}");
    }

    #[test]
    fn conditions_that_differ_are_told_with_both_values() {
        let parent = r#"{"metadata": {"name": "a"}, "status": {"conditions": [
            {"type": "Same", "status": "True"}, {"type": "Other", "status": "True"}, {"type": "Kept", "status": "True"}]}}"#;
        let parent = Object::decode(&Gvk::new("demo/v1", "Site"), parent).unwrap();
        let condition = |r#type: &str, status| Condition {
            r#type: r#type.to_owned(),
            status,
            reason: "Told".to_owned(),
            message: String::new(),
        };
        let planned = [
            condition("Same", ConditionStatus::True),
            condition("Other", ConditionStatus::False),
            condition("New", ConditionStatus::Unknown),
        ];
        let text = |text: &str| text.to_owned();
        let expected =
            [(text("Other"), text("True"), text("False")), (text("New"), text(""), text("Unknown"))];
        assert_eq!(conditions(&parent, &planned), expected);
    }
}

//! Who may do what: RBAC without roles.

use super::Asked;
use crate::refusal::Refusal;

/// What a user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// `verb resource`, as in `list widgets.cases.example.com`; `*` for any verb. What is here is forbidden,
    /// everything else is allowed.
    pub without: Vec<String>,
}

impl Rights {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Everything but this.
    pub fn without(rules: &[&str]) -> Self {
        Self { without: rules.iter().map(|rule| (*rule).to_owned()).collect() }
    }

    pub(super) fn check(&self, user: &str, asked: &Asked) -> Result<(), Refusal> {
        let verb = match &*asked.verb {
            "apply" => "patch",
            verb => verb,
        };
        let resource = asked.qualified();
        let is_meant = |rule: &String| {
            let (of, what) = rule.split_once(' ').unwrap_or(("*", rule));
            what == resource && (of == "*" || of == verb)
        };
        if !self.without.iter().any(is_meant) {
            return Ok(());
        }
        let Asked { group, resource, subresource, namespace, name, .. } = asked;
        let place = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {namespace:?}")
        };
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let sub = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
        Err(Refusal::new(
            403,
            "Forbidden",
            format!(
                "{}{named} is forbidden: User {user:?} cannot {verb} resource \"{resource}{sub}\" in API group {group:?} {place}",
                asked.qualified()
            ),
        ))
    }
}

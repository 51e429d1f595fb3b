//! What stands between a valid object and its storage: namespaces that end, quotas, policies.

use super::{State, text};
use crate::{
    refusal::{Cause, Refusal},
    schema::Kind,
};
use serde_json::Value;

/// An admission policy: what happens to writes of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// For people, and to take it off again.
    pub name: String,
    /// `configmaps`, `deployments.apps`.
    pub resource: String,
    /// Objects whose name begins so; empty for all.
    pub prefix: String,
    /// What happens.
    pub verdict: Verdict,
}

/// What a policy does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Refuses the write, with these words, as a `ValidatingAdmissionPolicy` does.
    Deny(String),
    /// Sets a value in the object, as a `MutatingAdmissionPolicy` does: the pointer's parents are made.
    Set(String, Value),
}

impl Policy {
    fn is_about(&self, kind: &Kind, object: &Value) -> bool {
        self.resource == kind.qualified() && text(object, "/metadata/name").starts_with(&*self.prefix)
    }
}

impl State {
    /// Admission that changes the object.
    pub(super) fn mutate(&self, kind: &Kind, object: &mut Value) {
        for policy in &self.policies {
            if let Verdict::Set(pointer, value) = &policy.verdict
                && policy.is_about(kind, object)
            {
                set(object, pointer, value.clone());
            }
        }
    }

    /// Admission that refuses: policies, then quotas.
    pub(super) fn admit(
        &self,
        kind: &Kind,
        namespace: &str,
        before: Option<&Value>,
        after: &Value,
    ) -> Result<(), Refusal> {
        let name = text(after, "/metadata/name");
        for policy in &self.policies {
            if let Verdict::Deny(why) = &policy.verdict
                && policy.is_about(kind, after)
            {
                let (qualified, policy) = (kind.qualified(), &policy.name);
                return Err(Refusal::new(
                    422,
                    "Invalid",
                    format!(
                        "{qualified} {name:?} is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {why}"
                    ),
                ));
            }
        }
        if before.is_none() {
            self.check_quotas(kind, namespace, name)?;
        }
        Ok(())
    }

    /// A new object needs a namespace that is not about to go.
    pub(super) fn check_namespace(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), Refusal> {
        if !kind.namespaced {
            return Ok(());
        }
        let Some(found) = self.store.get("namespaces", &(String::new(), namespace.to_owned())) else {
            let message = format!("namespaces {namespace:?} not found");
            return Err(Refusal::new(404, "NotFound", message).about("", "namespaces", namespace));
        };
        if found.pointer("/metadata/deletionTimestamp").is_none() {
            return Ok(());
        }
        let message = format!(
            "{} {name:?} is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            kind.qualified()
        );
        Err(Refusal::new(403, "Forbidden", message).because(vec![Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        }]))
    }

    fn check_quotas(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), Refusal> {
        let qualified = kind.qualified();
        for (key, quota) in &self.store.objects("resourcequotas") {
            if key.0 != namespace {
                continue;
            }
            let hard = quota.pointer("/spec/hard").and_then(Value::as_object);
            for (resource, limit) in hard.into_iter().flatten() {
                let counted = resource.strip_prefix("count/").unwrap_or(resource);
                let limit: Option<usize> = limit.as_str().and_then(|limit| limit.parse().ok());
                if counted != qualified {
                    continue;
                }
                let used = self.store.objects(&qualified).keys().filter(|(of, _)| of == namespace).count();
                if limit.is_some_and(|limit| used >= limit) {
                    let limit = limit.unwrap_or_default();
                    return Err(Refusal::new(
                        403,
                        "Forbidden",
                        format!(
                            "{qualified} {name:?} is forbidden: exceeded quota: {}, requested: {resource}=1, used: {resource}={used}, limited: {resource}={limit}",
                            key.1
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Sets a value; what lies on the way to it becomes an object.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut place = object;
    for part in pointer.split('/').skip(1) {
        let name = part.replace("~1", "/").replace("~0", "~");
        place = &mut place[name];
    }
    *place = value;
}

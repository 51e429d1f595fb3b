//! Why a request is refused, as the API server says it.

use serde_json::{Value, json};

/// An answer that is no success: a `Status` in the making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub code: u16,
    /// `metadata.Status.reason`: `NotFound`, `Conflict`, `Invalid`, ….
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// What exactly, where there is more to say.
    pub causes: Vec<Cause>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// What it is about if that is not what was asked for.
    pub about: Option<Box<About>>,
}

/// What a refusal is about; empty where there is no such thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The API group.
    pub group: String,
    /// The plural, or the kind: the API server has both.
    pub kind: String,
    /// The object.
    pub name: String,
}

/// One of the reasons of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldManagerConflict`, `NamespaceTerminating`, ….
    pub reason: String,
    /// For people.
    pub message: String,
    /// `spec.replicas`; empty where it is about no field.
    pub field: String,
}

impl Refusal {
    /// A refusal without causes.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), causes: Vec::new(), retry_after: None, about: None }
    }

    /// With causes.
    pub fn because(self, causes: Vec<Cause>) -> Self {
        Self { causes, ..self }
    }

    /// About something else than what was asked for.
    pub fn about(self, group: &str, kind: &str, name: &str) -> Self {
        let about = About { group: group.to_owned(), kind: kind.to_owned(), name: name.to_owned() };
        Self { about: Some(Box::new(about)), ..self }
    }

    /// The `Status`; by itself a refusal is about what was asked for.
    pub fn status(&self, asked: &About) -> Value {
        let mut details = json!({});
        // What cannot even be read is about nothing.
        let nothing = About::default();
        let asked = if matches!(self.reason, "BadRequest" | "") { &nothing } else { asked };
        let About { group, kind, name } = self.about.as_deref().unwrap_or(asked);
        for (field, text) in [("name", name), ("group", group), ("kind", kind)] {
            if !text.is_empty() {
                details[field] = text.as_str().into();
            }
        }
        if !self.causes.is_empty() {
            details["causes"] = self
                .causes
                .iter()
                .map(|cause| {
                    let mut told = json!({"reason": cause.reason, "message": cause.message});
                    if !cause.field.is_empty() {
                        told["field"] = cause.field.as_str().into();
                    }
                    told
                })
                .collect();
        }
        if let Some(seconds) = self.retry_after {
            details["retryAfterSeconds"] = seconds.into();
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if details.as_object().is_some_and(|details| !details.is_empty()) {
            status["details"] = details;
        }
        status
    }
}

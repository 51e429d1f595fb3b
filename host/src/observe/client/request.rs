//! What is asked: verbs, paths, headers.

use super::{Answer, Error, Scope};
use crate::{
    object::{Gvk, ObjectKey},
    observe::discovery::Kind,
};
use http::{Method, Request};
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::{borrow::Cow, fmt::Write as _};

/// What is asked, as the table of answers needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Apply,
    JsonPatch,
    Delete,
}

impl Verb {
    /// As in RBAC.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Apply | Self::JsonPatch => "patch",
            Self::Delete => "delete",
        }
    }

    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Apply | Self::JsonPatch | Self::Delete)
    }
}

pub(super) const JSON: &str = "application/json";

/// One request, and how people call it.
pub(super) struct Ask<'a> {
    pub(super) verb: Verb,
    pub(super) gvk: Option<&'a Gvk>,
    pub(super) target: String,
    pub(super) path: String,
    pub(super) accept: &'static str,
    pub(super) content: Option<(&'static str, String)>,
}

impl<'a> Ask<'a> {
    pub(super) fn collection(
        verb: Verb,
        kind: &'a Kind,
        scope: &Scope,
        options: &[(&str, Option<&str>)],
    ) -> Self {
        let namespace = scope.namespace.as_deref().filter(|_| kind.namespaced);
        let target = match namespace {
            Some(namespace) => format!("{} in namespace {namespace}", kind.gvk),
            None => kind.gvk.to_string(),
        };
        let path = Path::of(kind).namespace(namespace).with(&query(options));
        Self { verb, gvk: Some(&kind.gvk), target, path, accept: JSON, content: None }
    }

    /// Fails where a name would lead to another path than the one that was checked.
    pub(super) fn object(
        verb: Verb,
        kind: &'a Kind,
        key: &ObjectKey,
        status: bool,
        options: &[(&str, Option<&str>)],
    ) -> Result<Self, Error> {
        let target = key.to_string();
        let namespace = key.namespace.as_deref().filter(|_| kind.namespaced);
        let names = namespace.into_iter().chain([&*key.name]);
        if !names.into_iter().all(is_segment) || (kind.namespaced && namespace.is_none()) {
            return Err(Error {
                verb: verb.as_str(),
                target,
                answer: Answer::Invalid(vec!["metadata.name".into()]),
                message: "no object can have this namespace and name".into(),
                retry_after: None,
            });
        }
        let path = Path::of(kind).namespace(namespace).name(&key.name, status).with(&query(options));
        Ok(Self { verb, gvk: Some(&kind.gvk), target, path, accept: JSON, content: None })
    }

    pub(super) fn request(&self) -> Result<Request<Body>, http::Error> {
        let method = match self.verb {
            Verb::Get | Verb::List | Verb::Watch => Method::GET,
            Verb::Create => Method::POST,
            Verb::Apply | Verb::JsonPatch => Method::PATCH,
            Verb::Delete => Method::DELETE,
        };
        let request = Request::builder()
            .method(method)
            .uri(&self.path)
            .header(http::header::ACCEPT, self.accept)
            .header(http::header::USER_AGENT, concat!("oarlock/", env!("CARGO_PKG_VERSION")));
        match &self.content {
            Some((content_type, body)) => request
                .header(http::header::CONTENT_TYPE, *content_type)
                .body(Body::from(body.clone().into_bytes())),
            None => request.body(Body::empty()),
        }
    }
}

/// What needs no escape in a path or a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A path of the API: `/apis/apps/v1/namespaces/demo/deployments/blog`.
struct Path<'a> {
    kind: &'a Kind,
    namespace: String,
    name: String,
}

impl<'a> Path<'a> {
    fn of(kind: &'a Kind) -> Self {
        Self { kind, namespace: String::new(), name: String::new() }
    }

    fn namespace(self, namespace: Option<&str>) -> Self {
        let namespace =
            namespace.map_or_else(String::new, |namespace| format!("/namespaces/{}", escape(namespace)));
        Self { namespace, ..self }
    }

    fn name(self, name: &str, status: bool) -> Self {
        Self { name: format!("/{}{}", escape(name), if status { "/status" } else { "" }), ..self }
    }

    fn with(self, query: &str) -> String {
        let Self { kind, namespace, name } = self;
        let root = root(&kind.gvk.group, &kind.gvk.version);
        format!("{root}{namespace}/{}{name}{query}", kind.plural)
    }
}

/// Where a group's version is served: `/api/v1`, `/apis/apps/v1`.
pub(in crate::observe) fn root(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{}", escape(version))
    } else {
        format!("/apis/{}/{}", escape(group), escape(version))
    }
}

/// `?a=b&c=d`, without what is absent.
fn query(options: &[(&str, Option<&str>)]) -> String {
    let given =
        options.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={}", escape(value))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

/// Whether this is one segment of a path: what the API server accepts as a name of any kind. Anything else could
/// lead to another object than the one whose authority was checked.
fn is_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

fn escape(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, ESCAPED)
}

/// JSON as the API server's YAML parser reads it: what may not stand in YAML as it is, or ends a line there and so
/// would become a space, is escaped. Outside of its texts JSON has none of these.
pub(super) fn yaml(json: &str) -> Cow<'_, str> {
    let is_plain = |c| {
        !matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    if json.chars().all(is_plain) {
        return Cow::Borrowed(json);
    }
    let mut yaml = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        if is_plain(c) {
            yaml.push(c);
        } else {
            let _ = write!(yaml, "\\u{:04x}", u32::from(c));
        }
    }
    Cow::Owned(yaml)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_yaml_once_what_ends_lines_there_is_escaped() {
        let plain = r#"{"a":"ä 👩‍👩‍👧 \u0000","b":[1e21,"\u2028"]}"#;
        assert!(matches!(yaml(plain), Cow::Borrowed(same) if same == plain));
        let odd = "{\"\u{2028}\":\"\u{7f} \u{85} \u{2029} \u{feff} \u{ffff} e\u{301}\"}";
        assert_eq!(yaml(odd), "{\"\\u2028\":\"\\u007f \\u0085 \\u2029 \\ufeff \\uffff e\u{301}\"}");
        let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(parsed(&yaml(odd)), parsed(odd));
    }
}

//! What is asked: a request's path and query, taken apart.

use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// As in RBAC, but `apply` for a server-side apply, as nothing else tells it apart from other patches. The HTTP
    /// method in lower case where it is about no object.
    pub verb: String,
    /// Empty for the core group.
    pub group: String,
    /// `v1`; empty where the request is about no object.
    pub version: String,
    /// The plural.
    pub resource: String,
    /// `status`, or empty.
    pub subresource: String,
    /// Empty for all namespaces, and outside of them.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// Without the query.
    pub path: String,
    /// Decoded.
    pub query: BTreeMap<String, String>,
}

impl Asked {
    /// Reads a request.
    pub fn new(method: &str, uri: &str, content_type: &str) -> Self {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        let mut asked = Self { path: path.to_owned(), query: query.collect(), ..Self::default() };
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let rest = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                (*version).clone_into(&mut asked.version);
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                (asked.group, asked.version) = ((*group).to_owned(), (*version).to_owned());
                rest
            }
            _ => {
                asked.verb = method.to_ascii_lowercase();
                return asked;
            }
        };
        let rest = match rest {
            // `namespaces/x` and its subresources are about the namespace itself.
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
            {
                (*namespace).clone_into(&mut asked.namespace);
                rest
            }
            rest => rest,
        };
        let mut fields = rest.iter().map(|part| (*part).to_owned());
        asked.resource = fields.next().unwrap_or_default();
        asked.name = fields.next().unwrap_or_default();
        asked.subresource = fields.next().unwrap_or_default();
        let verb = match (method, asked.name.is_empty()) {
            ("GET", true)
                if asked.query.get("watch").is_some_and(|watch| watch == "true" || watch == "1") =>
            {
                "watch"
            }
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) if content_type.starts_with("application/apply-patch") => "apply",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "deletecollection",
            _ => "delete",
        };
        verb.clone_into(&mut asked.verb);
        asked
    }

    /// An option of the query; empty where it is not given.
    pub fn option(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Whether it changes something, or asks to.
    pub fn writes(&self) -> bool {
        matches!(&*self.verb, "create" | "update" | "apply" | "patch" | "delete" | "deletecollection")
    }

    /// `deployments.apps`, `configmaps`.
    pub fn qualified(&self) -> String {
        qualified(&self.resource, &self.group)
    }

    /// For people: `configmaps demo/blog`, with the subresource.
    pub fn target(&self) -> String {
        let Self { namespace, name, subresource, .. } = self;
        let slash = |text: &str| if text.is_empty() { String::new() } else { format!("/{text}") };
        let place = match (namespace.is_empty(), name.is_empty()) {
            (true, true) => String::new(),
            (false, true) => format!(" in {namespace}"),
            (true, false) => format!(" {name}"),
            (false, false) => format!(" {namespace}/{name}"),
        };
        if self.resource.is_empty() {
            self.path.clone()
        } else {
            format!("{}{}{place}", self.qualified(), slash(subresource))
        }
    }
}

/// `deployments.apps`; the plural alone in the core group.
pub fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let rows = [
            ("GET", "/api/v1/configmaps", "", "list configmaps"),
            ("GET", "/api/v1/namespaces/demo/configmaps?watch=true", "", "watch configmaps in demo"),
            ("GET", "/api/v1/namespaces/demo", "", "get namespaces demo"),
            ("PUT", "/api/v1/namespaces/demo/finalize", "", "update namespaces/finalize demo"),
            ("POST", "/apis/apps/v1/namespaces/demo/deployments", "", "create deployments.apps in demo"),
            (
                "PATCH",
                "/apis/e.io/v1/namespaces/demo/widgets/w%2e1/status?force=true",
                "application/apply-patch+yaml",
                "apply widgets.e.io/status demo/w.1",
            ),
            ("PATCH", "/apis/e.io/v1/plugins/p", "application/json-patch+json", "patch plugins.e.io p"),
            ("DELETE", "/api/v1/namespaces/demo/pods/a", "", "delete pods demo/a"),
            ("DELETE", "/api/v1/namespaces/demo/pods", "", "deletecollection pods in demo"),
            ("GET", "/apis/apps/v1", "", "get /apis/apps/v1"),
            ("GET", "/openapi/v3", "", "get /openapi/v3"),
        ];
        for (method, uri, content_type, said) in rows {
            let asked = Asked::new(method, uri, content_type);
            assert_eq!(format!("{} {}", asked.verb, asked.target()), said);
        }
        let asked = Asked::new("GET", "/api/v1/pods?labelSelector=a%3Db%2Cc&limit=5", "");
        assert_eq!(
            (asked.option("labelSelector"), asked.option("limit"), asked.option("x")),
            ("a=b,c", "5", "")
        );
    }
}

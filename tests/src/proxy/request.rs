//! What a request to the API server is about, from its method and path.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request};

/// The words that rules know it by, see [`Seen`](super::Seen).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) verb: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Asked {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let path: Vec<&str> = request.uri().path().split('/').filter(|word| !word.is_empty()).collect();
        let method = request.method();
        let resource = match *path {
            ["api", _, ref rest @ ..] | ["apis", _, _, ref rest @ ..] => rest,
            _ => &[],
        };
        let (namespace, rest) = match *resource {
            // A namespace itself has subresources too.
            ["namespaces", _, "status" | "finalize"] => ("", resource),
            ["namespaces", namespace, ref rest @ ..] if !rest.is_empty() => (namespace, rest),
            _ => ("", resource),
        };
        let Some((resource, rest)) = rest.split_first() else {
            let verb = method.as_str().to_ascii_lowercase();
            let none = String::new;
            return Self { verb, resource: none(), subresource: none(), namespace: none(), name: none() };
        };
        let (name, subresource) = rest.split_first().unwrap_or((&"", &[]));
        Self {
            verb: verb(request, !name.is_empty()).to_owned(),
            resource: (*resource).to_owned(),
            subresource: subresource.join("/"),
            namespace: namespace.to_owned(),
            name: (*name).to_owned(),
        }
    }
}

fn verb<B>(request: &Request<B>, is_named: bool) -> &'static str {
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
    let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    match *request.method() {
        Method::GET if is_watch => "watch",
        Method::GET if is_named => "get",
        Method::GET => "list",
        Method::PUT => "update",
        Method::PATCH if content_type.starts_with(b"application/apply-patch") => "apply",
        Method::PATCH => "patch",
        Method::DELETE if is_named => "delete",
        Method::DELETE => "deletecollection",
        _ => "create",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, uri: &str, content_type: &str, wanted: [&str; 5]) {
        let request = Request::builder().method(method).uri(uri).header(CONTENT_TYPE, content_type);
        let asked = Asked::of(&request.body(()).unwrap());
        let found =
            [&asked.verb, &asked.resource, &asked.subresource, &asked.namespace, &asked.name].map(|s| &**s);
        assert_eq!(found, wanted, "{method} {uri}");
    }

    #[test]
    fn requests_are_named_as_kubernetes_names_them() {
        let (json, apply) = ("application/json", "application/apply-patch+yaml");
        check("GET", "/api/v1/pods?limit=500", "", ["list", "pods", "", "", ""]);
        check("GET", "/api/v1/pods?a=b&watch=true", "", ["watch", "pods", "", "", ""]);
        check("GET", "/api/v1/namespaces/demo/pods/p", "", ["get", "pods", "", "demo", "p"]);
        check("GET", "/api/v1/namespaces/demo", "", ["get", "namespaces", "", "", "demo"]);
        check(
            "PUT",
            "/api/v1/namespaces/demo/finalize",
            json,
            ["update", "namespaces", "finalize", "", "demo"],
        );
        check("POST", "/apis/apps/v1/namespaces/d/deployments", json, ["create", "deployments", "", "d", ""]);
        let status = "/apis/g.example/v1/namespaces/d/widgets/w/status?force=true";
        check("PATCH", status, apply, ["apply", "widgets", "status", "d", "w"]);
        check("PATCH", status, "application/json-patch+json", ["patch", "widgets", "status", "d", "w"]);
        check("DELETE", "/apis/g.example/v1/things/t", json, ["delete", "things", "", "", "t"]);
        check("DELETE", "/apis/g.example/v1/things", json, ["deletecollection", "things", "", "", ""]);
        check("GET", "/apis/apps/v1", "", ["get", "", "", "", ""]);
        check("GET", "/openapi/v3", "", ["get", "", "", "", ""]);
    }
}

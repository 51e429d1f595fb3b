//! The table: what an answer of the API server means.
//!
//! In: what was asked, the HTTP status, and the `Status` object that came with it. Out: one row.
//! Texts decide only where the API server sends nothing better; each such text is named below.
//! Never: I/O, clocks.

use super::request::Verb;
use kube::core::{Status, response::StatusCause};

/// What the API server, or the way to it, answered. One row per (status, reason, causes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 409 with a resourceVersion precondition that does not hold, or a JSON patch whose `test` fails.
    VersionConflict,
    /// 409 because the object has another uid, or does not exist any more.
    UidMismatch,
    /// 409 because other field managers own fields; `(field, manager)` each.
    FieldConflict(Vec<(String, String)>),
    /// 409 because an object of that name exists.
    AlreadyExists,
    /// 401: the credentials are not accepted.
    Unauthorized,
    /// 403: a right is missing.
    Forbidden,
    /// 403: a quota is exhausted.
    QuotaExceeded,
    /// 4xx by admission: a policy or webhook says no.
    Denied,
    /// 403: the namespace is being deleted.
    NamespaceTerminating,
    /// 404: no such object, or no such namespace.
    NotFound,
    /// 404: no such kind, or no such subresource; 405 on a read: the kind cannot be read that way.
    KindNotFound,
    /// 410: the version asked for is too old. Or 504: it is in the future, so history has gone backwards.
    Expired,
    /// 400, 422, or a schema error of server-side apply (a 500): the object is wrong; the field paths.
    Invalid(Vec<String>),
    /// 413, or a 500 of etcd: the object is too large.
    TooLarge,
    /// 429: not now.
    TooManyRequests,
    /// 5xx: the outcome of a write is unknown.
    Unavailable,
    /// No answer in time: the outcome of a write is unknown.
    Timeout,
    /// The connection failed: the outcome of a write is unknown.
    Connection,
    /// The answer cannot be decoded: the outcome of a write is unknown.
    Undecodable,
    /// This replica may not write.
    GateClosed,
}

impl Answer {
    /// Whether a write may or may not have happened (rule R3a).
    pub fn outcome_is_unknown(&self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout | Self::Connection | Self::Undecodable)
    }

    /// The row's name: a label value for metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::VersionConflict => "version_conflict",
            Self::UidMismatch => "uid_mismatch",
            Self::FieldConflict(_) => "field_conflict",
            Self::AlreadyExists => "already_exists",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Denied => "denied",
            Self::NamespaceTerminating => "namespace_terminating",
            Self::NotFound => "not_found",
            Self::KindNotFound => "kind_not_found",
            Self::Expired => "expired",
            Self::Invalid(_) => "invalid",
            Self::TooLarge => "too_large",
            Self::TooManyRequests => "too_many_requests",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Undecodable => "undecodable",
            Self::GateClosed => "gate_closed",
        }
    }
}

/// The row for an answer that is no success.
pub(super) fn classify(verb: Verb, http_status: u16, status: &Status) -> Answer {
    let message = status.message.as_str();
    let has_cause = |reason: &str| causes(status).iter().any(|cause| cause.reason == reason);
    match http_status {
        // Every refusal of an admission webhook or policy says so, whatever status it chooses.
        400..=499 if message.contains("denied the request") || message.contains("denied request: ") => {
            Answer::Denied
        }
        401 => Answer::Unauthorized,
        403 if has_cause("NamespaceTerminating") => Answer::NamespaceTerminating,
        403 if message.contains("exceeded quota: ") || message.contains("status unknown for quota: ") => {
            Answer::QuotaExceeded
        }
        403 if is_missing_right(message) => Answer::Forbidden,
        // Admission plugins of the API server itself: limits, pod security, quotas that cannot be computed.
        403 => Answer::Denied,
        // An object that is not there is named in the details; a path that is not there has none (`404 page not
        // found` as plain text, or `the server could not find the requested resource`).
        404 if status.details.as_ref().is_some_and(|details| !details.name.is_empty()) => Answer::NotFound,
        404 => Answer::KindNotFound,
        405 if matches!(verb, Verb::Get | Verb::List | Verb::Watch) => Answer::KindNotFound,
        408 => Answer::Timeout,
        409 if status.reason == "AlreadyExists" => Answer::AlreadyExists,
        409 if has_cause("FieldManagerConflict") => Answer::FieldConflict(field_conflicts(status)),
        409 if is_uid_mismatch(message) => Answer::UidMismatch,
        409 => Answer::VersionConflict,
        410 => Answer::Expired,
        413 => Answer::TooLarge,
        // The only thing wrong is that the object of this name has another uid.
        422 if verb != Verb::Delete && is_only_about(status, "metadata.uid") => Answer::UidMismatch,
        // ConfigMaps and Secrets have a limit of their own, on the object as a whole.
        422 if is_only_about(status, "[]") && has_cause("FieldValueTooLong") => Answer::TooLarge,
        // A JSON patch that does not apply, by `test` or because a path is missing, is answered with this
        // sentence and nothing else: the object is not the one that the patch was made for.
        422 if verb == Verb::JsonPatch
            && causes(status).is_empty()
            && message.starts_with("the server rejected our request") =>
        {
            Answer::VersionConflict
        }
        429 => Answer::TooManyRequests,
        400..=499 => Answer::Invalid(invalid_fields(status)),
        // Not transient at all: a field that the schema does not declare, or of another type.
        500 if message.contains("failed to create typed patch object") => {
            Answer::Invalid(invalid_fields(status))
        }
        500 if message.contains("etcdserver: request is too large")
            || message.contains("trying to send message larger than max") =>
        {
            Answer::TooLarge
        }
        504 if matches!(verb, Verb::List | Verb::Watch) && has_cause("ResourceVersionTooLarge") => {
            Answer::Expired
        }
        504 => Answer::Timeout,
        500..=599 => Answer::Unavailable,
        // The API server answers nothing below 400 that is no success: something else is on the way to it.
        _ => Answer::Undecodable,
    }
}

fn causes(status: &Status) -> &[StatusCause] {
    status.details.as_ref().map_or(&[], |details| &details.causes)
}

/// What authorizers say; also when somebody gives away rights that they do not have, or blocks an owner's
/// deletion without the right to.
fn is_missing_right(message: &str) -> bool {
    (message.contains("User \"") && message.contains("\" cannot "))
        || message.contains("is attempting to grant RBAC permissions not currently held")
        || message.contains("cannot set blockOwnerDeletion ")
}

/// Server-side apply with a uid; a delete's precondition, as the registry checks it; and as the storage does.
fn is_uid_mismatch(message: &str) -> bool {
    message.contains("uid mismatch: ")
        || message.contains("the UID in the precondition (")
        || message.contains("UID in precondition: ")
}

fn is_only_about(status: &Status, field: &str) -> bool {
    let causes = causes(status);
    !causes.is_empty() && causes.iter().all(|cause| cause.field == field)
}

/// `(field, manager)` from `conflict with "kubectl" using apps/v1`.
fn field_conflicts(status: &Status) -> Vec<(String, String)> {
    causes(status)
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| {
            let manager = cause.message.split('"').nth(1).unwrap_or(&cause.message);
            (path(&cause.field), manager.to_owned())
        })
        .collect()
}

/// The field paths that an invalid object's answer names, each once, in order.
fn invalid_fields(status: &Status) -> Vec<String> {
    let mut fields: Vec<String> = causes(status)
        .iter()
        .filter(|cause| !cause.field.is_empty())
        .map(|cause| path(&cause.field))
        .collect();
    if fields.is_empty() {
        // Strict decoding: `unknown field "spec.a", duplicate field "spec.b"`.
        fields.extend(
            status.message.split(" field \"").skip(1).filter_map(|rest| rest.split('"').next()).map(path),
        );
    }
    if fields.is_empty() {
        // Typed patches: `… Kind=Widget): .status.a: field not declared in schema`, one line per field.
        let words = status.message.split_whitespace();
        fields.extend(
            words.filter(|word| word.starts_with('.')).filter_map(|word| word.strip_suffix(':')).map(path),
        );
    }
    let mut seen = std::collections::BTreeSet::new();
    fields.retain(|field| seen.insert(field.clone()));
    fields
}

/// Paths without the leading dot that some answers have and others do not.
fn path(field: &str) -> String {
    field.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rows: &[(Verb, u16, serde_json::Value, Answer)]) {
        for (verb, code, status, expected) in rows {
            let parsed: Status = serde_json::from_value(status.clone()).unwrap();
            assert_eq!(classify(*verb, *code, &parsed), *expected, "{code} {status}");
        }
    }

    fn invalid(fields: &[&str]) -> Answer {
        Answer::Invalid(fields.iter().map(ToString::to_string).collect())
    }

    macro_rules! status {
        ($($json:tt)*) => { serde_json::json!({ $($json)* }) };
    }

    #[test]
    fn conflicts_have_four_meanings() {
        let conflict = |message: &str| status! {"reason": "Conflict", "message": message};
        check(&[
            (
                Verb::Apply,
                409,
                conflict(
                    r#"Operation cannot be fulfilled on widgets "w": the object has been modified; please apply your changes to the latest version and try again"#,
                ),
                Answer::VersionConflict,
            ),
            (
                Verb::Apply,
                409,
                conflict(
                    r#"Operation cannot be fulfilled on widgets "w": uid mismatch: the provided object specified uid u-1, and no existing object was found"#,
                ),
                Answer::UidMismatch,
            ),
            (
                Verb::Delete,
                409,
                conflict(
                    r#"Operation cannot be fulfilled on widgets "w": Precondition failed: UID in precondition: u-1, UID in object meta: u-2"#,
                ),
                Answer::UidMismatch,
            ),
            (
                Verb::Delete,
                409,
                conflict(
                    r#"Operation cannot be fulfilled on Widget "w": the UID in the precondition (u-1) does not match the UID in record (u-2). The object might have been deleted and then recreated"#,
                ),
                Answer::UidMismatch,
            ),
            (
                Verb::Apply,
                422,
                status! {"reason": "Invalid", "details": {"name": "w", "causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}},
                Answer::UidMismatch,
            ),
            (
                Verb::Apply,
                409,
                status! {"reason": "Conflict", "message": "Apply failed with 2 conflicts", "details": {"causes": [
                    {"reason": "FieldManagerConflict", "message": "conflict with \"kubectl\" using apps/v1", "field": ".spec.replicas"},
                    {"reason": "FieldManagerConflict", "message": "conflict with \"hpa\" with subresource \"scale\" using apps/v1", "field": ".spec.x"},
                ]}},
                Answer::FieldConflict(vec![
                    ("spec.replicas".into(), "kubectl".into()),
                    ("spec.x".into(), "hpa".into()),
                ]),
            ),
            (
                Verb::Apply,
                409,
                status! {"reason": "AlreadyExists", "message": "widgets \"w\" already exists"},
                Answer::AlreadyExists,
            ),
            (
                Verb::JsonPatch,
                422,
                status! {"reason": "Invalid", "message": "the server rejected our request due to an error in our request", "details": {}},
                Answer::VersionConflict,
            ),
        ]);
    }

    #[test]
    fn refusals_are_told_apart_by_who_refuses() {
        let forbidden = |message: &str| status! {"reason": "Forbidden", "message": message};
        check(&[
            (
                Verb::List,
                403,
                forbidden(
                    r#"services is forbidden: User "system:serviceaccount:a:b" cannot list resource "services" in API group "" at the cluster scope"#,
                ),
                Answer::Forbidden,
            ),
            (
                Verb::Apply,
                403,
                forbidden(
                    r#"roles.rbac.authorization.k8s.io "r" is forbidden: user "x" (groups=["y"]) is attempting to grant RBAC permissions not currently held: {}"#,
                ),
                Answer::Forbidden,
            ),
            (
                Verb::Apply,
                403,
                forbidden(
                    r#"configmaps "c" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"#,
                ),
                Answer::Forbidden,
            ),
            (
                Verb::Apply,
                403,
                forbidden(
                    r#"configmaps "c" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=2, limited: count/configmaps=2"#,
                ),
                Answer::QuotaExceeded,
            ),
            (
                Verb::Apply,
                403,
                forbidden(r#"pods "p" is forbidden: status unknown for quota: q, resources: pods"#),
                Answer::QuotaExceeded,
            ),
            (
                Verb::Apply,
                403,
                forbidden(r#"pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged"#),
                Answer::Denied,
            ),
            (
                Verb::Apply,
                403,
                forbidden(r#"pods "p" is forbidden: failed quota: q: must specify limits.cpu"#),
                Answer::Denied,
            ),
            (
                Verb::Apply,
                403,
                status! {"reason": "Forbidden", "message": "configmaps \"c\" is forbidden: unable to create new content in namespace n because it is being terminated",
                "details": {"name": "c", "causes": [{"reason": "NamespaceTerminating", "message": "namespace n is being terminated", "field": "metadata.namespace"}]}},
                Answer::NamespaceTerminating,
            ),
            (
                Verb::Apply,
                400,
                status! {"message": "admission webhook \"w.example.com\" denied the request: no"},
                Answer::Denied,
            ),
            (
                Verb::Apply,
                422,
                status! {"reason": "Invalid", "message": "configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"},
                Answer::Denied,
            ),
            (
                Verb::Get,
                401,
                status! {"reason": "Unauthorized", "message": "Unauthorized"},
                Answer::Unauthorized,
            ),
        ]);
    }

    #[test]
    fn what_is_missing_is_an_object_or_a_kind() {
        check(&[
            (
                Verb::Get,
                404,
                status! {"reason": "NotFound", "message": "widgets \"w\" not found", "details": {"name": "w", "kind": "widgets"}},
                Answer::NotFound,
            ),
            (
                Verb::Apply,
                404,
                status! {"reason": "NotFound", "message": "namespaces \"n\" not found", "details": {"name": "n", "kind": "namespaces"}},
                Answer::NotFound,
            ),
            (Verb::List, 404, status! {"message": "404 page not found\n"}, Answer::KindNotFound),
            (
                Verb::Apply,
                404,
                status! {"reason": "NotFound", "message": "the server could not find the requested resource", "details": {}},
                Answer::KindNotFound,
            ),
            (Verb::Watch, 405, status! {"reason": "MethodNotAllowed"}, Answer::KindNotFound),
            (Verb::Apply, 405, status! {"reason": "MethodNotAllowed"}, invalid(&[])),
        ]);
    }

    #[test]
    fn invalid_objects_name_their_fields() {
        check(&[
            (
                Verb::Apply,
                422,
                status! {"reason": "Invalid", "details": {"name": "w", "causes": [
                    {"reason": "FieldValueInvalid", "field": "spec.selector", "message": "field is immutable"},
                    {"reason": "FieldValueRequired", "field": "spec.template"},
                    {"reason": "FieldValueInvalid", "field": "spec.selector"},
                ]}},
                invalid(&["spec.selector", "spec.template"]),
            ),
            (
                Verb::Apply,
                400,
                status! {"reason": "BadRequest", "message": r#"Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.a", duplicate field "spec.b""#},
                invalid(&["spec.a", "spec.b"]),
            ),
            (
                Verb::Apply,
                500,
                status! {"message": "failed to create typed patch object (demo/w; cases.example.com/v1, Kind=Widget): .status.nope: field not declared in schema"},
                invalid(&["status.nope"]),
            ),
            (
                Verb::Apply,
                500,
                status! {"message": "failed to create typed patch object (demo/w; apps/v1, Kind=Deployment): errors:\n  .spec.a: field not declared in schema\n  .spec.template.spec.containers[name=\"web\"].b: field not declared in schema"},
                invalid(&["spec.a", "spec.template.spec.containers[name=\"web\"].b"]),
            ),
            (Verb::Delete, 400, status! {"reason": "BadRequest", "message": "invalid option"}, invalid(&[])),
            (Verb::Apply, 415, status! {"reason": "UnsupportedMediaType"}, invalid(&[])),
            (Verb::Apply, 413, status! {"reason": "RequestEntityTooLarge"}, Answer::TooLarge),
            (Verb::Apply, 500, status! {"message": "etcdserver: request is too large"}, Answer::TooLarge),
            (
                Verb::Apply,
                422,
                status! {"reason": "Invalid", "details": {"name": "c", "causes": [{"reason": "FieldValueTooLong", "field": "[]", "message": "may not be more than 1048576 bytes"}]}},
                Answer::TooLarge,
            ),
        ]);
    }

    #[test]
    fn what_may_pass_is_told_from_what_will_not() {
        let too_large = status! {"reason": "Timeout", "message": "Timeout: Too large resource version: 9, current: 5",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}};
        check(&[
            (
                Verb::List,
                410,
                status! {"reason": "Expired", "message": "The provided continue parameter is too old"},
                Answer::Expired,
            ),
            (
                Verb::Watch,
                410,
                status! {"reason": "Gone", "message": "too old resource version: 1 (5)"},
                Answer::Expired,
            ),
            (Verb::Watch, 504, too_large.clone(), Answer::Expired),
            (Verb::Get, 504, too_large, Answer::Timeout),
            (Verb::Apply, 429, status! {"reason": "TooManyRequests"}, Answer::TooManyRequests),
            (
                Verb::Apply,
                500,
                status! {"reason": "InternalError", "message": "Internal error occurred: failed calling webhook \"w\""},
                Answer::Unavailable,
            ),
            (Verb::Apply, 503, status! {}, Answer::Unavailable),
            (Verb::Apply, 504, status! {"reason": "Timeout"}, Answer::Timeout),
            (Verb::Get, 302, status! {}, Answer::Undecodable),
        ]);
        for (answer, unknown) in
            [(Answer::Timeout, true), (Answer::Unavailable, true), (Answer::TooManyRequests, false)]
        {
            assert_eq!(answer.outcome_is_unknown(), unknown, "{}", answer.as_str());
        }
    }
}

use super::*;
use crate::{
    decide::{
        guest::Growth,
        plan::{self, Failure},
    },
    object::Gvk,
};

fn key(name: &str) -> ObjectKey {
    ObjectKey { gvk: Gvk::new("v1", "ConfigMap"), namespace: Some("demo".into()), name: name.into() }
}

fn api(answer: Answer) -> client::Error {
    let (target, message) = ("ConfigMap demo/a".to_owned(), "the server's words".to_owned());
    client::Error { verb: "patch", target, answer, message, retry_after: None }
}

fn child(answer: Answer) -> (ObjectKey, apply::Error) {
    (key("a"), apply::Error::Apply { child: key("a"), source: api(answer) })
}

fn call(error: CallError) -> Error {
    Error::Unplanned(Arc::new(Unplanned::Call(error)))
}

fn guest(transient: bool, reason: &str) -> Error {
    let failure = Failure { transient, reason: reason.to_owned(), message: "the guest's words".to_owned() };
    Error::Unplanned(Arc::new(Unplanned::Failure(failure)))
}

fn taken() -> apply::Error {
    apply::Error::NotOwned { child: key("a"), owner: "belongs to Deployment web".to_owned() }
}

/// `retry` at once, `patient` after ten seconds or more, `wait`; with whose fault it is.
fn next(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Wait => "wait",
        Outcome::Done => "done",
        Outcome::Retry { fault, not_before: None } => match fault {
            Fault::Api => "retry api",
            Fault::Plugin => "retry plugin",
            Fault::Conflict => "retry conflict",
        },
        Outcome::Retry { fault, not_before: Some(wait) } => {
            assert!(wait >= PATIENCE);
            match fault {
                Fault::Api => "patient api",
                Fault::Plugin => "patient plugin",
                Fault::Conflict => "patient conflict",
            }
        }
    }
}

#[test]
fn every_failure_has_its_reason_its_cause_and_what_follows() {
    use Blame::{Api, Host, Object};
    let limit = Duration::from_secs(5);
    let trapped = CallError::Trapped { said: "the guest's words".into(), trace: "frames".into() };
    let plan = plan::Error::TooDeep { what: "child 3".into() };
    let grown = Growth { what: "bytes of memory", asked: 9, limit: 7 };
    let many = plan::Error::TooMany { what: "children", count: 9, limit: 7 };
    let rows = [
        (guest(true, ""), "GuestFailed", "the guest's words", "retry plugin", Object),
        (guest(false, ""), "GuestFailed", "the guest's words", "wait", Object),
        (guest(true, "Flaky"), "Flaky", "the guest's words", "retry plugin", Object),
        (guest(false, "Broken"), "Broken", "the guest's words", "wait", Object),
        (call(trapped), "GuestTrapped", "the guest's words", "wait", Object),
        (call(CallError::Fuel { limit: 7 }), "FuelExhausted", "7 units", "wait", Object),
        (call(CallError::Memory(grown)), "MemoryExceeded", "9 bytes", "wait", Object),
        (call(CallError::Output { limit: 7 }), "OutputTooLarge", "7 bytes", "wait", Object),
        (call(CallError::Deadline { limit }), "DeadlineExceeded", "5s", "patient plugin", Object),
        (call(CallError::Host("pool".into())), "HostFault", "pool", "retry api", Host),
        (Error::Unplanned(Arc::new(Unplanned::Plan(plan))), "InvalidPlan", "child 3", "wait", Object),
        (
            Error::Unplanned(Arc::new(Unplanned::Plan(many))),
            "PlanTooLarge",
            "9 children, at most 7",
            "wait",
            Object,
        ),
        (
            Error::Apply(vec![(key("a"), taken())]),
            "ChildNotOwned",
            "Deployment web",
            "patient plugin",
            Object,
        ),
        (
            Error::Metadata(api(Answer::Invalid(vec![]))),
            "ChildInvalid",
            "server's words",
            "patient plugin",
            Object,
        ),
        (Error::Prune(api(Answer::Denied)), "ChildRefused", "server's words", "patient plugin", Object),
        (Error::Finalizer(api(Answer::Forbidden)), "Forbidden", "server's words", "patient api", Object),
        (Error::Status(api(Answer::Timeout)), "ApiUnavailable", "server's words", "retry api", Api),
        (Error::Panicked("index out of bounds".into()), "HostFault", "out of bounds", "retry api", Host),
    ];
    for (error, reason, cause, then, blame) in rows {
        let verdict = of(&error);
        assert_eq!(
            (verdict.word(), next(verdict.outcome), verdict.blame),
            (reason, then, blame),
            "{error:?}"
        );
        assert!(verdict.message.contains(cause), "{reason}: {}", verdict.message);
    }
}

/// The table in docs/conditions.md, which has every answer.
#[test]
fn every_answer_of_the_api_server_has_the_reason_and_the_retry_of_its_row() {
    let page = include_str!("../../../../docs/conditions.md");
    let answers = [
        Answer::VersionConflict,
        Answer::UidMismatch,
        Answer::FieldConflict(vec![("spec.replicas".to_owned(), "hpa".to_owned())]),
        Answer::AlreadyExists,
        Answer::Unauthorized,
        Answer::Forbidden,
        Answer::QuotaExceeded,
        Answer::Denied,
        Answer::NamespaceTerminating,
        Answer::NotFound,
        Answer::KindNotFound,
        Answer::Expired,
        Answer::Invalid(vec![]),
        Answer::TooLarge,
        Answer::TooManyRequests,
        Answer::Unavailable,
        Answer::Timeout,
        Answer::Connection,
        Answer::Undecodable,
        Answer::GateClosed,
    ];
    for answer in answers {
        let name = answer.as_str();
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let cells: Vec<_> = row.unwrap_or_else(|| panic!("no row {name}")).split(" | ").collect();
        let verdict = of(&Error::Apply(vec![child(answer)]));
        let then = match verdict.outcome {
            Outcome::Wait | Outcome::Done => "no |",
            Outcome::Retry { not_before: None, .. } => "with back-off |",
            Outcome::Retry { not_before: Some(PATIENCE), .. } => "after 10 s or more |",
            Outcome::Retry { .. } => "at some other time",
        };
        assert_eq!(cells[2..], [format!("`{}`", verdict.word()), then.to_owned()], "{name}");
        let message = "ConfigMap demo/a was not applied: cannot patch ConfigMap demo/a: the server's words";
        assert_eq!(verdict.message, message);
    }
}

#[test]
fn retry_after_is_kept() {
    let retry_after = Some(Duration::from_secs(7));
    let error = client::Error { retry_after, ..api(Answer::TooManyRequests) };
    let expected = Outcome::Retry { fault: Fault::Api, not_before: retry_after };
    assert_eq!(of(&Error::Prune(error)).outcome, expected);
}

#[test]
fn worst_of_several_children_gives_the_reason_and_the_soonest_retry_the_outcome() {
    let rows = [
        (vec![child(Answer::Timeout), child(Answer::Denied)], "ChildRefused", "retry api", Blame::Object),
        (vec![child(Answer::Timeout), child(Answer::Forbidden)], "Forbidden", "retry api", Blame::Object),
        (
            vec![child(Answer::Invalid(vec![])), child(Answer::Denied)],
            "ChildInvalid",
            "patient plugin",
            Blame::Object,
        ),
        (
            vec![child(Answer::Timeout), child(Answer::AlreadyExists)],
            "ApiUnavailable",
            "retry api",
            Blame::Api,
        ),
        // The same word, but this one does not pass by itself.
        (
            vec![child(Answer::AlreadyExists), child(Answer::FieldConflict(vec![]))],
            "Conflict",
            "retry conflict",
            Blame::Object,
        ),
        (
            vec![child(Answer::NamespaceTerminating), child(Answer::Timeout)],
            "NamespaceTerminating",
            "retry api",
            Blame::Object,
        ),
    ];
    for (failed, reason, then, blame) in rows {
        let count = failed.len();
        let verdict = of(&Error::Apply(failed));
        assert_eq!((verdict.word(), next(verdict.outcome), verdict.blame), (reason, then, blame));
        assert_eq!(verdict.message.matches("the server's words").count(), count, "{}", verdict.message);
    }
}

#[test]
fn failure_that_may_pass_is_told_only_when_it_stays_and_leaves_ready_as_it_is() {
    use Telling::{Beside, Nothing, Ready};
    let unavailable = || Error::Prune(api(Answer::Unavailable));
    let parked = |seconds| {
        Error::Prune(client::Error {
            retry_after: Some(Duration::from_secs(seconds)),
            ..api(Answer::TooManyRequests)
        })
    };
    let race = || Error::Metadata(api(Answer::VersionConflict));
    // The failure, how many in a row came before, whether what Ready says still holds.
    let rows = [
        (unavailable(), 0, true, Nothing),
        (unavailable(), 4, false, Nothing),
        (unavailable(), 5, true, Beside),
        (unavailable(), 5, false, Ready),
        (race(), 4, true, Nothing),
        (race(), 5, true, Beside),
        (race(), 5, false, Ready),
        (parked(1), 0, true, Nothing),
        (parked(30), 0, true, Beside),
        (parked(30), 0, false, Ready),
        (Error::Panicked(String::new()), 4, true, Nothing),
        (Error::Panicked(String::new()), 5, true, Ready),
        (Error::Prune(api(Answer::Forbidden)), 0, true, Ready),
        (Error::Metadata(api(Answer::FieldConflict(vec![]))), 0, true, Ready),
        (guest(true, ""), 0, true, Ready),
        (guest(false, ""), 0, true, Ready),
    ];
    for (error, attempt, holds, expected) in rows {
        assert_eq!(of(&error).telling(attempt, holds), expected, "{error:?} after {attempt}");
    }
}

#[test]
fn conditions_say_whether_it_is_tried_again() {
    let said = |error: &Error, telling| {
        let conditions = of(error).conditions(telling);
        let said =
            conditions.iter().map(|one| format!("{}={} {}", one.r#type, one.status.as_str(), one.reason));
        said.collect::<Vec<_>>()
    };
    let unavailable = Error::Prune(api(Answer::Unavailable));
    assert_eq!(said(&unavailable, Telling::Nothing), [""; 0]);
    assert_eq!(said(&unavailable, Telling::Beside), ["Reconciling=True ApiUnavailable"]);
    assert_eq!(
        said(&unavailable, Telling::Ready),
        ["Ready=False ApiUnavailable", "Reconciling=True ApiUnavailable"]
    );
    assert_eq!(said(&guest(true, "Flaky"), Telling::Ready), ["Ready=False Flaky", "Reconciling=True Flaky"]);
    assert_eq!(said(&guest(false, "Broken"), Telling::Ready), ["Ready=False Broken", "Stalled=True Broken"]);
    // What cannot be seen is not known.
    let gone = Error::Apply(vec![child(Answer::KindNotFound)]);
    assert_eq!(said(&gone, Telling::Ready), ["Ready=Unknown KindMissing", "Reconciling=True KindMissing"]);
}

//! One child: looked at, then changed as was decided.

use super::{
    Context, Done, Error, Look, Way,
    decision::{self, Decision},
    desired, order,
};
use crate::{
    act::{
        contested::Standing,
        delete::{self, Warrant},
        drift, fields, owned, watch_of,
    },
    decide::plan::{Child, Plan, Update},
    object::{ANNOTATION_APPLIED, Object, field_manager},
    observe::{
        client::{self, Answer},
        discovery::Kind,
    },
};
use serde_json::Value;
use std::sync::Arc;

/// Finds a child, and decides what is to be done.
pub(super) async fn look<'a>(context: Context<'_>, plan: &Plan, child: &'a Child) -> Result<Look<'a>, Error> {
    let Context { client, discovery, snapshot, sources, plugin, parent, .. } = context;
    let key = || child.key.clone();
    let held = |kind, why: &str| {
        let way = Way { manager: String::new(), force: false, mark: String::new() };
        Look { child, kind, live: None, decision: Decision::Hold(why.to_owned()), told: None, way }
    };
    let kind = match discovery.kind(&child.key.gvk).await {
        Ok(kind) => kind,
        Err(error) if error.answer == Answer::KindNotFound && order::brings(plan, &child.key.gvk) => {
            return Ok(held(None, "its kind is not served yet"));
        }
        Err(source) => return Err(Error::Kind { child: key(), source }),
    };
    let watch = watch_of(sources, child);
    if child.options.fields && watch.is_none() {
        // Before the first of them is applied, where they may be found must outlive this process.
        return Ok(held(Some(kind), "is awaited until its kind is watched"));
    }
    let mirrored =
        watch.and_then(|watch| snapshot.get(watch, child.key.namespace.as_deref(), &child.key.name).cloned());
    let live = match mirrored {
        Some(live) => Some(live),
        // The mirror has what carries our label: somebody may have taken it off (F12), or it is not ours.
        None => client
            .peek(&kind, &child.key)
            .await
            .map_err(|source| Error::Peek { child: key(), source })?
            .map(Arc::new),
    };
    let (decision, way) = if child.options.fields {
        let (decision, force) = match fields::decide(child, &kind, live.as_deref(), plugin, parent) {
            fields::Decision::Nothing => (Decision::Nothing, false),
            fields::Decision::Missing(why) => (Decision::Hold(why.to_owned()), false),
            fields::Decision::Apply { body, force } => (Decision::Apply(body), force),
        };
        let (manager, mark) = (fields::manager(plugin, &parent.uid), fields::annotation(&parent.uid));
        (decision, Way { manager, force, mark })
    } else {
        let manager = field_manager(plugin);
        // Nothing is there to take fields from: whoever comes in between keeps them, and is found at the next pass.
        let way = Way { manager, force: live.is_some(), mark: ANNOTATION_APPLIED.to_owned() };
        (decision::of(child, &kind, live.as_deref(), plugin, parent), way)
    };
    let mut look = Look { child, kind: Some(kind), live, decision, told: None, way };
    heed_contest(context, &mut look);
    Ok(look)
}

/// Leaves alone what others fight over, but for a try now and then.
fn heed_contest(context: Context<'_>, look: &mut Look<'_>) {
    let Some(live) = &look.live else { return };
    let (hash, differs) = match &look.decision {
        // What is not taken by force is no fight.
        Decision::Apply(body) if look.way.force => (content(body, &look.way), true),
        Decision::Nothing => match live.annotations.get(&*look.way.mark) {
            Some(hash) => (&**hash, false),
            None => return,
        },
        _ => return,
    };
    match context.contests.look(&look.way.manager, &live.uid, hash, differs, context.now) {
        Standing::Fine => {}
        Standing::Try(told) => look.told = Some(told),
        Standing::Leave(told) => look.decision = Decision::Leave(told),
        Standing::Ask => {
            if let Decision::Apply(body) = std::mem::replace(&mut look.decision, Decision::Await) {
                look.decision = Decision::Ask(body);
            }
        }
    }
}

/// The hash that a body carries.
fn content<'a>(body: &'a Value, way: &Way) -> &'a str {
    body["metadata"]["annotations"][&*way.mark].as_str().unwrap_or_default()
}

/// Does what was decided.
pub(super) async fn make(context: Context<'_>, look: Look<'_>) -> Result<Done, Error> {
    let Look { child, kind, live, decision, told, way } = look;
    let key = || child.key.clone();
    let (body, kind) = match (decision, kind) {
        (Decision::Nothing, _) => return Ok(Done::Unchanged(live)),
        (Decision::Hold(why), _) => return Ok(Done::Held(why)),
        (Decision::Leave(told), _) => return Err(Error::Contested { child: key(), told }),
        (Decision::Ask(body), Some(kind)) => {
            let Some(live) = &live else { return Ok(Done::Awaited) };
            return ask(context, child, &kind, &body, live, way).await;
        }
        (Decision::Refuse(owner), _) => return Err(Error::NotOwned { child: key(), owner }),
        // What is not served is held, whatever else.
        (Decision::Await, _) | (_, None) => return Ok(Done::Awaited),
        (Decision::Apply(body), Some(kind)) => (body, kind),
        (Decision::Restore, Some(kind)) => match restored(context, child, &kind).await? {
            Some(body) => (body, kind),
            // Gone since: it is created anew by the next pass, which its going brings about.
            None => return Ok(Done::Awaited),
        },
    };
    match apply(context, child, &kind, &body, live.as_deref(), &way).await {
        Ok(object) if live.is_some() => {
            context.contests.gave(&way.manager, &object.uid, content(&body, &way), context.now);
            Ok(match told {
                Some(told) => Done::Tried(object, told),
                None => Done::Updated(object),
            })
        }
        Ok(object) => Ok(Done::Created(object)),
        Err(source) => match live {
            Some(live) if matches!(source.answer, Answer::Invalid(_)) && !child.options.fields => {
                refused(context, child, &kind, &body, &live, source).await
            }
            _ => Err(Error::Apply { child: key(), source }),
        },
    }
}

async fn apply(
    context: Context<'_>,
    child: &Child,
    kind: &Kind,
    body: &Value,
    live: Option<&Object>,
    way: &Way,
) -> Result<Arc<Object>, client::Error> {
    let Context { client, discovery, cache, .. } = context;
    let body = request(body.clone(), live, &way.manager).to_string();
    let apply = client::Apply { manager: &way.manager, force: way.force, status: false, body: &body };
    match client.apply(kind, &child.key, apply).await {
        Ok(object) => {
            let object = Arc::new(object);
            drop(cache.wrote(Arc::clone(&object)));
            Ok(object)
        }
        Err(error) => {
            if error.answer == Answer::KindNotFound {
                discovery.forget(&child.key.gvk);
            }
            Err(error)
        }
    }
}

/// Applies without force: the API server then names who is in the way.
async fn ask(
    context: Context<'_>,
    child: &Child,
    kind: &Kind,
    body: &Value,
    live: &Object,
    way: Way,
) -> Result<Done, Error> {
    let Context { contests, now, .. } = context;
    let way = Way { force: false, ..way };
    match apply(context, child, kind, body, Some(live), &way).await {
        Ok(object) => {
            let path =
                drift::first_difference(body, live, &way.manager).unwrap_or_else(|| "a field".to_owned());
            contests.gave(&way.manager, &live.uid, content(body, &way), now);
            let told = contests.asked(&way.manager, &live.uid, &format!("{path} is taken away"), now);
            Ok(Done::Tried(object, told))
        }
        Err(client::Error { answer: Answer::FieldConflict(fields), .. }) => {
            let words: Vec<_> = fields.iter().map(|(path, manager)| format!("{path} by {manager}")).collect();
            let told = contests.asked(&way.manager, &live.uid, &words.join(", "), now);
            Err(Error::Contested { child: child.key.clone(), told })
        }
        Err(source) => Err(Error::Apply { child: child.key.clone(), source }),
    }
}

/// The API server refused to change what is there: because of what it shall be, or because it may not become that?
///
/// The second is not told by any field of the answer, and kinds have many words for it; but then it would take the
/// same content as a new object.
async fn refused(
    context: Context<'_>,
    child: &Child,
    kind: &Kind,
    body: &Value,
    live: &Arc<Object>,
    source: client::Error,
) -> Result<Done, Error> {
    let key = || child.key.clone();
    match context.client.is_valid_as_new(kind, &child.key, &body.to_string()).await {
        Ok(true) => {}
        // Nobody is to blame before the answer is known: the next pass asks again.
        Err(unanswered)
            if unanswered.answer.outcome_is_unknown() || unanswered.answer == Answer::TooManyRequests =>
        {
            return Err(Error::Apply { child: key(), source: unanswered });
        }
        // Where this may not be asked, the refusal itself is what is known.
        Ok(false) | Err(_) => return Err(Error::Apply { child: key(), source }),
    }
    match child.options.update {
        Update::Apply | Update::OnDelete => Err(Error::Immutable { child: key(), source }),
        Update::Replace | Update::Rolling => {
            match delete::one(context, live, Warrant::replaced(child, &source)).await {
                Ok(true) => Ok(Done::Replaced(Arc::clone(live))),
                Ok(false) => Ok(Done::Awaited),
                Err(source) => Err(Error::Replace { child: key(), source }),
            }
        }
    }
}

/// What the plugin owns of a child, as it stands, with what the host adds: for one whose content is not to change.
/// `None` if it is not there.
async fn restored(context: Context<'_>, child: &Child, kind: &Kind) -> Result<Option<Value>, Error> {
    let Context { client, plugin, parent, .. } = context;
    // What was found may be metadata only.
    let found = client.get(kind, &child.key).await;
    let Some(live) = found.map_err(|source| Error::Peek { child: child.key.clone(), source })? else {
        return Ok(None);
    };
    let owned = owned::of(&live, &field_manager(plugin), false);
    // The API server wrote it.
    let text: Value = serde_json::from_str(&live.body).unwrap_or_default();
    let part = owned::part(&text, &owned).unwrap_or_default();
    Ok(Some(desired::restored(child, part, kind, plugin, parent)))
}

/// The body of the apply: never for another object than the one it was decided on (rule A6).
pub(super) fn request(mut body: Value, live: Option<&Object>, manager: &str) -> Value {
    if let Some(live) = live {
        owned::leave_out_emptied(&mut body, &owned::of(live, manager, false));
        body["metadata"]["uid"] = Value::from(&*live.uid);
    }
    body
}

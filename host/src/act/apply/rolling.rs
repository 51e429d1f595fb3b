//! Children that are changed one after the other: `oarlock.dev/update: rolling` (rule A8).
//!
//! Told from what is there and nothing else, so it goes on where it was after a restart.
//! Never: I/O, clocks.

use super::{Error, Look, decision::Decision};
use crate::{
    decide::{
        plan::{Child, Update},
        readiness::{Readiness, readiness},
    },
    object::{Gvk, ObjectKey},
};
use std::collections::BTreeSet;

/// How one of the siblings stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// It is as planned, and ready.
    Ready,
    /// It is as planned, but on its way, or absent, or nobody can tell: none other is touched before it is ready.
    Unready,
    /// It is to be changed, and ready now.
    ToChange,
    /// It is to be changed and not ready as it is: it goes first, so that what is broken can be mended.
    Broken,
}

/// Holds all but one of the siblings of each kind that are to be changed; all of them while another is not ready.
/// `looks` are those of `children`, in the same order.
pub(super) fn hold(children: &[Child], looks: &mut [Result<Look<'_>, Error>]) {
    let rolling = |child: &Child| child.options.update == Update::Rolling;
    let kinds: BTreeSet<&Gvk> =
        children.iter().filter(|child| rolling(child)).map(|child| &child.key.gvk).collect();
    for gvk in kinds {
        let is_sibling = |(child, _): &(&Child, _)| rolling(child) && child.key.gvk == *gvk;
        let mut siblings: Vec<_> = children.iter().zip(&mut *looks).filter(is_sibling).collect();
        let stands: Vec<(&ObjectKey, Stand)> =
            siblings.iter().map(|(child, look)| (&child.key, stand(look))).collect();
        let waits_for = waits_for(&stands);
        for ((_, look), why) in siblings.iter_mut().zip(waits_for) {
            if let (Ok(look), Some(why)) = (look, why) {
                look.decision = Decision::Hold(why);
            }
        }
    }
}

fn stand(look: &Result<Look<'_>, Error>) -> Stand {
    let Ok(look) = look else { return Stand::Unready };
    let is_ready = look.live.as_deref().is_some_and(|live| readiness(live) == Readiness::Ready);
    match (&look.decision, is_ready) {
        (Decision::Apply(_), _) if look.live.is_none() => Stand::Unready,
        (Decision::Apply(_), true) => Stand::ToChange,
        (Decision::Apply(_), false) => Stand::Broken,
        (_, true) => Stand::Ready,
        (_, false) => Stand::Unready,
    }
}

/// For each sibling that has to wait: for whom.
fn waits_for(siblings: &[(&ObjectKey, Stand)]) -> Vec<Option<String>> {
    let count = |wanted: Stand| siblings.iter().filter(|(_, stand)| *stand == wanted).count();
    let unready = siblings.iter().find(|(_, stand)| *stand == Stand::Unready).map(|(key, _)| *key);
    let next = siblings
        .iter()
        .position(|(_, stand)| *stand == Stand::Broken)
        .or_else(|| siblings.iter().position(|(_, stand)| *stand == Stand::ToChange))
        .filter(|_| unready.is_none());
    let Some(first) = unready.or_else(|| next.map(|next| siblings[next].0)) else {
        return vec![None; siblings.len()];
    };
    let (changed, all) = (count(Stand::Ready) + count(Stand::Unready), siblings.len());
    let why = format!("is changed after {first} is ready; {changed} of {all} are as planned");
    let has_to_wait = |(at, (_, stand)): (usize, &(&ObjectKey, Stand))| {
        (matches!(stand, Stand::ToChange | Stand::Broken) && Some(at) != next).then(|| why.clone())
    };
    siblings.iter().enumerate().map(has_to_wait).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Way;
    use super::*;
    use crate::{decide::plan::Options, object::Object};
    use Stand::{Broken, Ready, ToChange, Unready};
    use serde_json::{Map, json};
    use std::sync::Arc;

    /// Those that are held, and for whom.
    fn held(stands: &[Stand]) -> Vec<(usize, String)> {
        let keys: Vec<ObjectKey> = (0..stands.len())
            .map(|number| ObjectKey {
                gvk: Gvk::new("v1", "Pod"),
                namespace: Some("demo".into()),
                name: number.to_string().as_str().into(),
            })
            .collect();
        let siblings: Vec<_> = keys.iter().zip(stands.iter().copied()).collect();
        let all = waits_for(&siblings).into_iter().enumerate();
        all.filter_map(|(at, why)| {
            Some((at, why?.split(" is ready").next()?.replace("is changed after ", "")))
        })
        .collect()
    }

    #[test]
    fn one_sibling_is_changed_while_all_others_are_ready() {
        let after = |at: usize, first: usize| (at, format!("Pod demo/{first}"));
        for (stands, expected) in [
            (&[][..], vec![]),
            (&[Ready, Ready], vec![]),
            (&[ToChange], vec![]),
            (&[Unready], vec![]),
            (&[ToChange, ToChange, ToChange], vec![after(1, 0), after(2, 0)]),
            (&[Ready, ToChange, ToChange], vec![after(2, 1)]),
            // The one that was changed is not ready yet, or was deleted: nobody else.
            (&[Unready, ToChange, ToChange], vec![after(1, 0), after(2, 0)]),
            (&[ToChange, Ready, Unready], vec![after(0, 2)]),
            // What is broken anyway goes first.
            (&[ToChange, Broken, ToChange], vec![after(0, 1), after(2, 1)]),
            (&[Broken, Broken], vec![after(1, 0)]),
            (&[Unready, Broken], vec![after(1, 0)]),
        ] {
            assert_eq!(held(stands), expected, "{stands:?}");
        }
    }

    #[test]
    fn sibling_that_cannot_be_looked_at_holds_the_others() {
        let child = |name: &str| Child {
            key: ObjectKey { gvk: Gvk::new("v1", "Pod"), namespace: Some("demo".into()), name: name.into() },
            object: Map::new(),
            options: Options { update: Update::Rolling, ..Options::default() },
        };
        let children = [child("a"), child("b")];
        let live = json!({"metadata": {"name": "b", "namespace": "demo", "uid": "u"}});
        let live = Object::decode(&children[1].key.gvk, &live.to_string()).unwrap();
        let unknown = Error::NotOwned { child: children[0].key.clone(), owner: String::new() };
        let to_change = Look {
            child: &children[1],
            kind: None,
            live: Some(Arc::new(live)),
            decision: Decision::Apply(json!({})),
            told: None,
            way: Way { manager: String::new(), force: true, mark: String::new() },
        };
        let mut looks = [Err(unknown), Ok(to_change)];
        hold(&children, &mut looks);
        let decision = &looks[1].as_ref().ok().unwrap().decision;
        let why = "is changed after Pod demo/a is ready; 1 of 2 are as planned";
        assert_eq!(*decision, Decision::Hold(why.to_owned()));
    }

    #[test]
    fn message_says_how_far_it_is() {
        let keys = ["a", "b", "c"].map(|name| ObjectKey {
            gvk: Gvk::new("v1", "Pod"),
            namespace: Some("demo".into()),
            name: name.into(),
        });
        let siblings = [(&keys[0], Unready), (&keys[1], ToChange), (&keys[2], Ready)];
        let expected = "is changed after Pod demo/a is ready; 2 of 3 are as planned";
        assert_eq!(waits_for(&siblings)[1].as_deref(), Some(expected));
    }
}

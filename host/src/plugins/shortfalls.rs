//! What the statuses of a plugin's parents should hold and cannot (rule S8): from reconciles to the `Plugin`.
//!
//! Never: I/O, clocks.

use crate::{
    act::status::{Refusal, Shortfall},
    object::ObjectKey,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Fields that are kept of one parent: a status with more of them tells enough by these.
const FIELDS: usize = 16;

/// The shortfalls of one plugin, parent by parent; parents without any take no place.
#[derive(Default)]
pub struct Shortfalls(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    parents: BTreeMap<ObjectKey, Noted>,
    /// Paths of all parents, with how many have each, and why it is refused if it is.
    paths: BTreeMap<Arc<str>, (usize, Option<String>)>,
}

#[derive(Default)]
struct Noted {
    paths: Vec<Arc<str>>,
    refusal: Option<Arc<Refusal>>,
}

impl Shortfalls {
    /// Notes what a parent's status lacks now, in place of what it lacked before. True if a path is new among all
    /// parents, or gone from all.
    pub fn note(&self, parent: &ObjectKey, shortfalls: Vec<Shortfall>, refusal: Option<Refusal>) -> bool {
        let mut inner = self.lock();
        if shortfalls.is_empty() {
            return inner.take(parent);
        }
        let before = inner.paths();
        inner.take(parent);
        let mut noted = Noted { paths: Vec::new(), refusal: refusal.map(Arc::new) };
        for Shortfall { path, refusal } in shortfalls.into_iter().take(FIELDS) {
            let path: Arc<str> =
                inner.paths.get_key_value(&*path).map_or_else(|| path.into(), |(path, _)| path.clone());
            let (count, why) = inner.paths.entry(path.clone()).or_default();
            *count += 1;
            *why = refusal;
            noted.paths.push(path);
        }
        inner.parents.insert(parent.clone(), noted);
        inner.paths() != before
    }

    /// Forgets a parent. True if a path is gone with it.
    pub fn forget(&self, parent: &ObjectKey) -> bool {
        self.lock().take(parent)
    }

    /// What was refused of a parent's status.
    pub fn refusal(&self, parent: &ObjectKey) -> Option<Arc<Refusal>> {
        self.lock().parents.get(parent)?.refusal.clone()
    }

    /// All of them, by path.
    pub fn all(&self) -> Vec<Shortfall> {
        let inner = self.lock();
        let all = inner.paths.iter();
        all.map(|(path, (_, refusal))| Shortfall { path: path.to_string(), refusal: refusal.clone() })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // At worst a path is told for too long.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn paths(&self) -> Vec<Arc<str>> {
        self.paths.keys().cloned().collect()
    }

    fn take(&mut self, parent: &ObjectKey) -> bool {
        let before = self.paths.len();
        for path in self.parents.remove(parent).unwrap_or_default().paths {
            if let Some((count, _)) = self.paths.get_mut(&path) {
                *count -= 1;
                if *count == 0 {
                    self.paths.remove(&path);
                }
            }
        }
        self.paths.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Gvk;

    fn parent(name: &str) -> ObjectKey {
        ObjectKey { gvk: Gvk::new("v1", "Widget"), namespace: None, name: name.into() }
    }

    fn lacks(paths: &[&str]) -> Vec<Shortfall> {
        paths.iter().map(|path| Shortfall { path: (*path).to_owned(), refusal: None }).collect()
    }

    fn told(shortfalls: &Shortfalls) -> Vec<String> {
        shortfalls.all().into_iter().map(|one| one.path).collect()
    }

    #[test]
    fn paths_are_told_while_any_parent_has_them() {
        let shortfalls = Shortfalls::default();
        let note = |name: &str, paths: &[&str]| shortfalls.note(&parent(name), lacks(paths), None);
        assert!(note("a", &["status.x", "status.y"]));
        assert!(!note("a", &["status.x", "status.y"]), "as before");
        assert!(!note("b", &["status.y"]), "nothing new");
        assert!(note("b", &["status.y", "status.z"]));
        assert!(note("b", &["status.y", "status.w"]), "one for another");
        assert_eq!(told(&shortfalls), ["status.w", "status.x", "status.y"]);
        assert!(note("b", &[]), "w is gone");
        assert!(!note("b", &[]));
        assert!(shortfalls.forget(&parent("a")));
        assert!(!shortfalls.forget(&parent("a")));
        assert_eq!(told(&shortfalls), [""; 0]);
        assert!(shortfalls.lock().parents.is_empty());
    }

    #[test]
    fn what_is_kept_of_a_parent_is_bounded() {
        let shortfalls = Shortfalls::default();
        let many: Vec<_> = (0..100).map(|n| format!("status.f{n:03}")).collect();
        let many: Vec<_> = many.iter().map(|path| &**path).collect();
        assert!(shortfalls.note(&parent("a"), lacks(&many), None));
        assert_eq!(told(&shortfalls).len(), FIELDS);
    }
}

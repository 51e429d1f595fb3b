//! The functions that a guest may call, and what a call leaves behind.
//!
//! In: questions of the guest. Out: answers of the [`View`], each recorded there. Without a view (`describe`)
//! no read is answered. Nothing here waits for anything: a call only gives way.

mod logs;
mod wasi;

pub(super) use logs::{LAST_WORDS_BYTES, Logs};
pub(super) use wasi::linker as wasi_linker;

use super::{
    Growth,
    bindings::{self, children, clock, cluster, log, previous, types},
    engine::TABLE_ELEMENTS,
};
use crate::{
    config::Limits,
    decide::readiness::Readiness,
    object::Gvk,
    observe::reads::{self, View},
};
use std::sync::{Arc, Mutex};
use wasmtime::component::{HasSelf, Linker};

/// The time during `describe`, where there is none.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// A guest's questions take fuel only inside of the guest. So that a guest which asks all the time cannot hold
/// a worker, a call gives way after this many bytes of questions …
const GIVE_WAY_BYTES: usize = 1 << 20;
/// … where each question counts as that many at least: a thousand of them are about a millisecond.
const QUESTION_BYTES: usize = 1 << 10;

/// What belongs to one call.
pub(super) struct State {
    /// What the guest may see; `None` during `describe`.
    pub(super) view: Option<View>,
    /// What it said. Behind a lock only because WASI's streams have to own their end of it.
    pub(super) logs: Arc<Mutex<Logs>>,
    /// Memory it has.
    pub(super) memory: Memory,
    /// Made when first needed.
    wasi: Option<Box<wasi::Sealed>>,
    /// Bytes of questions since the call gave way.
    asked: usize,
}

impl State {
    pub(super) fn new(view: Option<View>, limits: &Limits) -> Self {
        Self {
            view,
            logs: Arc::new(Mutex::new(Logs::new(limits.log_bytes, limits.log_lines))),
            memory: Memory { limit: limits.memory_bytes, used: 0, granted: 0, refused: None },
            wasi: None,
            asked: 0,
        }
    }

    /// The reads of the call, with that of WASI's clock, and its logs.
    pub(super) fn finish(self) -> (Vec<reads::Recorded>, Logs) {
        let mut view = self.view;
        if self.wasi.is_some_and(|wasi| wasi.was_time_read())
            && let Some(view) = &mut view
        {
            view.now();
        }
        let mut logs = logs::lock(&self.logs);
        (view.map(View::into_recorded).unwrap_or_default(), std::mem::take(&mut *logs))
    }

    /// Lets other tasks run when the guest has asked a lot.
    async fn give_way(&mut self, bytes: usize) {
        self.asked += bytes.max(QUESTION_BYTES);
        if self.asked >= GIVE_WAY_BYTES {
            self.asked = 0;
            tokio::task::yield_now().await;
        }
    }

    fn view(&mut self) -> Result<&mut View, types::ReadError> {
        let denied =
            || types::ReadError::Denied("describe() is not for an object: there is nothing to read".into());
        self.view.as_mut().ok_or_else(denied)
    }
}

impl From<reads::Error> for types::ReadError {
    fn from(error: reads::Error) -> Self {
        let text = error.to_string();
        match error {
            reads::Error::Denied(_) => Self::Denied(text),
            reads::Error::Selector(_) | reads::Error::NamespaceMissing { .. } => Self::Invalid(text),
            reads::Error::Exhausted { .. } => Self::Exhausted(text),
        }
    }
}

impl types::Host for State {}

impl cluster::Host for State {
    async fn get(
        &mut self,
        kind: types::ObjectKind,
        namespace: Option<String>,
        name: String,
    ) -> Result<Option<String>, types::ReadError> {
        self.give_way(name.len()).await;
        let gvk = Gvk::new(&kind.api_version, &kind.kind);
        Ok(self.view()?.get(&gvk, namespace.as_deref(), &name)?)
    }

    async fn list(
        &mut self,
        kind: types::ObjectKind,
        namespace: Option<String>,
        label_selector: Option<String>,
    ) -> Result<Vec<String>, types::ReadError> {
        self.give_way(label_selector.as_ref().map_or(0, String::len)).await;
        let gvk = Gvk::new(&kind.api_version, &kind.kind);
        Ok(self.view()?.list(&gvk, namespace.as_deref(), label_selector.as_deref())?)
    }
}

impl children::Host for State {
    async fn list(&mut self) -> Result<Vec<children::Child>, types::ReadError> {
        self.give_way(0).await;
        let states = self.view()?.children()?;
        Ok(states
            .into_iter()
            .map(|state| children::Child {
                api_version: state.key.gvk.api_version(),
                kind: state.key.gvk.kind.to_string(),
                namespace: state.key.namespace.map(|namespace| namespace.to_string()),
                name: state.key.name.to_string(),
                readiness: match state.readiness {
                    Readiness::Ready => children::Readiness::Ready,
                    Readiness::Progressing(awaited) => children::Readiness::Progressing(awaited),
                    Readiness::Failed(why) => children::Readiness::Failed(why),
                    Readiness::Terminating => children::Readiness::Terminating,
                },
            })
            .collect())
    }
}

impl previous::Host for State {
    async fn status(&mut self) -> Option<String> {
        self.give_way(0).await;
        self.view.as_mut()?.previous_status().map(|status| status.to_string())
    }
}

impl clock::Host for State {
    async fn now(&mut self) -> String {
        self.give_way(0).await;
        self.view.as_mut().map_or_else(|| EPOCH.to_owned(), |view| view.now().to_string())
    }
}

impl log::Host for State {
    async fn write(&mut self, level: log::Level, message: String) {
        self.give_way(message.len()).await;
        let level = match level {
            log::Level::Debug => tracing::Level::DEBUG,
            log::Level::Info => tracing::Level::INFO,
            log::Level::Warn => tracing::Level::WARN,
            log::Level::Error => tracing::Level::ERROR,
        };
        logs::lock(&self.logs).write(level, message);
    }
}

/// The contract's imports.
pub(super) fn contract_linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    bindings::Plugin::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    Ok(linker)
}

const BYTES: &str = "bytes of memory";

/// The memory of one call: all linear memories and tables together.
#[derive(Debug)]
pub(super) struct Memory {
    limit: usize,
    /// What it has. It never gets less, so this is also the most it had.
    pub(super) used: usize,
    /// What was granted last, to take it back if the system has none.
    granted: usize,
    /// A growth was refused: explains the trap that usually follows.
    pub(super) refused: Option<Growth>,
}

impl Memory {
    fn grow(&mut self, bytes: usize) -> bool {
        let asked = self.used.saturating_add(bytes);
        let fits = asked <= self.limit;
        self.granted = if fits { bytes } else { 0 };
        self.used += self.granted;
        if !fits {
            self.refused = Some(Growth { what: BYTES, asked, limit: self.limit });
        }
        fits
    }
}

impl wasmtime::ResourceLimiter for Memory {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current)))
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        let asked = self.used;
        self.used -= std::mem::take(&mut self.granted);
        self.refused = Some(Growth { what: BYTES, asked, limit: self.used });
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS {
            self.refused =
                Some(Growth { what: "elements of a table", asked: desired, limit: TABLE_ELEMENTS });
            return Ok(false);
        }
        Ok(self.grow(desired.saturating_sub(current).saturating_mul(size_of::<usize>())))
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_grow_failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::ResourceLimiter as _;

    const PAGE: usize = 64 << 10;

    fn memory() -> Memory {
        State::new(None, &Limits { memory_bytes: 4 * PAGE, ..Limits::STANDARD }).memory
    }

    #[test]
    fn memory_counts_all_memories_and_tables_together() {
        let mut memory = memory();
        let grown = [
            memory.memory_growing(0, PAGE, None),
            memory.memory_growing(0, 2 * PAGE, None),
            memory.table_growing(0, PAGE / size_of::<usize>(), None),
        ];
        assert!(
            grown.into_iter().all(|grown| grown.is_ok_and(|granted| granted)) && memory.refused.is_none()
        );
        let table = Growth { what: "elements of a table", asked: usize::MAX, limit: TABLE_ELEMENTS };
        let elements = PAGE / size_of::<usize>();
        assert!(!memory.table_growing(elements, usize::MAX, None).unwrap());
        assert_eq!(memory.refused, Some(table));
        assert!(!memory.memory_growing(PAGE, 2 * PAGE, None).unwrap());
        assert_eq!(memory.refused, Some(Growth { what: BYTES, asked: 5 * PAGE, limit: 4 * PAGE }));
    }

    #[test]
    fn memory_that_the_system_does_not_have_is_taken_back() {
        let mut memory = memory();
        assert!(memory.memory_growing(0, 3 * PAGE, None).unwrap());
        memory.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        assert_eq!(memory.refused, Some(Growth { what: BYTES, asked: 3 * PAGE, limit: 0 }));
        assert!(memory.memory_growing(0, 4 * PAGE, None).unwrap());
    }
}

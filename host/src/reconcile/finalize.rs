//! The finalizer of a parent: on before there is something to undo, off when it is undone (rule D1).

use super::{Error, Pass, Reconciler};
use crate::{
    decide::{finalizer, guest::Function},
    object::Object,
    observe::client,
    report::Report,
};
use std::sync::Arc;

impl Reconciler {
    /// Before anything is applied (rule D1). The write's response is a change of the parent: it comes again.
    pub(super) async fn add_finalizer(&self, pass: &Pass, report: &mut Report) {
        if let Err(error) = self.try_add_finalizer(pass, report).await {
            let failed = Err(Error::Finalizer(error));
            self.conclude(pass, Function::Reconcile, (None, failed), report).await;
        }
    }

    async fn try_add_finalizer(&self, pass: &Pass, report: &mut Report) -> Result<(), client::Error> {
        let patch = finalizer::add_patch(&pass.parent, &pass.plugin.name);
        let object = self.patch_finalizer(pass, &patch, report).await?;
        // A later version that does not need it takes it off when it looks at this parent.
        let is_in_force = self.registry.now().plugins.contains_key(&pass.plugin.name);
        // The plugin ended meanwhile, and may have looked for finalizers before this one was there.
        if let Some(undo) = finalizer::remove_patch(&object, &pass.plugin.name).filter(|_| !is_in_force) {
            self.patch_finalizer(pass, &undo, report).await?;
        }
        Ok(())
    }

    /// The parent as it is afterwards.
    async fn patch_finalizer(
        &self,
        pass: &Pass,
        patch: &str,
        report: &mut Report,
    ) -> Result<Arc<Object>, client::Error> {
        let object = self.client.json_patch(&pass.plugin.parent_kind, &pass.parent.key, patch).await?;
        report.metadata_written = true;
        let object = Arc::new(object);
        // What was its last is answered with the version that the object had.
        let is_gone = object.is_terminating() && object.version == pass.parent.version;
        drop(if is_gone { self.cache.released(&object) } else { self.cache.wrote(Arc::clone(&object)) });
        Ok(object)
    }

    /// Nothing is left to do that needs it: the finalizer goes, and an object that is being deleted with it (rule D2).
    pub(super) async fn release(&self, pass: &Pass, report: &mut Report) -> Result<(), client::Error> {
        if let Some(patch) = finalizer::remove_patch(&pass.parent, &pass.plugin.name) {
            self.patch_finalizer(pass, &patch, report).await?;
        }
        Ok(())
    }
}

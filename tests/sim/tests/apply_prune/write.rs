//! One write, from the request to what the host makes of the answer.

use crate::{
    check,
    host::{Write, labelled},
    model::{Answer, Flaw, Setup, State},
    world::{Refusal, bit},
};

impl State {
    /// One write: what the API server makes of it, what it tells the host, and what it breaks.
    pub(crate) fn write(&mut self, write: Write, answer: Answer, setup: &Setup) {
        if answer != Answer::Heard {
            self.left.lost_answers -= 1;
        }
        let before = self.clone();
        let result = if answer == Answer::LostBefore { Ok(()) } else { self.happen(write, setup) };
        let what = match write {
            Write::Apply(child) | Write::Prune(child) => Some(child),
            Write::AddFinalizer | Write::RemoveFinalizer | Write::Status => Some(2),
            Write::RecordKinds => None,
        };
        let Some(what) = what else {
            if answer == Answer::Heard {
                self.host.recorded = self.world.recorded;
            }
            return;
        };
        if result.is_ok() && answer != Answer::LostBefore {
            self.broken |= check::broken(&before, &self.world, write);
        }
        let is_delete = matches!(write, Write::Prune(_));
        let Some(pass) = &mut self.host.pass else { return };
        let is_done = answer == Answer::Heard && result.is_ok();
        match write {
            Write::Apply(child) => {
                pass.applies[child] = None;
                pass.placed |= if is_done { bit(child) } else { 0 };
            }
            Write::Prune(child) => pass.prunes[child] = None,
            Write::AddFinalizer | Write::RemoveFinalizer => pass.is_bound = false,
            Write::Status | Write::RecordKinds => {}
        }
        if !is_done {
            pass.is_failed |= result != Err(Refusal::FieldConflict);
            pass.is_refused |= result == Err(Refusal::FieldConflict);
            pass.is_unapplied |= matches!(write, Write::Apply(_));
            // `reconcile::doubt`: deletes name a uid, so a second one does no harm.
            if answer != Answer::Heard && !is_delete {
                self.host.doubts |= bit(what);
            }
            if answer == Answer::LostAfter && result.is_ok() && !is_delete {
                self.unseen |= bit(what);
            }
            return;
        }
        if what == 2 {
            self.host.parent = self.world.parent;
        } else if !is_delete {
            self.host.children[what] = labelled(self.world.children[what]);
        } else if let Some(mirrored) = &mut self.host.children[what]
            && before.host.pass.as_ref().is_some_and(|pass| pass.prunes[what] == Some(mirrored.uid))
        {
            mirrored.is_terminating = true;
        }
        self.seen(what);
    }

    fn happen(&mut self, write: Write, setup: &Setup) -> Result<(), Refusal> {
        let world = &mut self.world;
        if write == Write::RecordKinds {
            world.recorded = self.host.recorded | world.declared;
            return Ok(());
        }
        let Some(pass) = &self.host.pass else { return Ok(()) };
        let version = (setup.flaw != Some(Flaw::ReleaseAny)).then_some(pass.parent);
        match write {
            Write::RecordKinds => Ok(()),
            Write::AddFinalizer => world.change_parent(version, |parent| parent.has_finalizer = true),
            Write::RemoveFinalizer => world.change_parent(version, |parent| parent.has_finalizer = false),
            Write::Apply(child) => match pass.applies[child] {
                Some(apply) => world.apply(child, apply, pass.parent.uid),
                None => Ok(()),
            },
            Write::Prune(child) => {
                let uid = pass.prunes[child].filter(|_| setup.flaw != Some(Flaw::DeleteWithoutUid));
                world.delete(child, uid);
                Ok(())
            }
            Write::Status => match &mut world.parent {
                Some(parent) if parent.uid == pass.parent.uid => {
                    parent.said = Some(pass.said());
                    Ok(())
                }
                _ => Err(Refusal::Conflict),
            },
        }
    }
}

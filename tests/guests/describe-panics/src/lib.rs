//! A plugin that panics when asked for its manifest.

use oarlock_sdk::{Failure, Manifest, Object, Plan, Reads, Reconciler};

struct Describe;

impl Reconciler for Describe {
    type Object = Object<()>;

    fn manifest() -> Manifest {
        panic!("no manifest today")
    }

    fn reconcile(_object: &Object<()>, _reads: &Reads) -> Result<Plan, Failure> {
        Ok(Plan::default())
    }
}

oarlock_sdk::export!(Describe);

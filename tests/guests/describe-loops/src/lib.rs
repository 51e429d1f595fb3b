//! A plugin that never says what it is.

use oarlock_sdk::{Failure, Manifest, Object, Plan, Reads, Reconciler};

struct Describe;

impl Reconciler for Describe {
    type Object = Object<()>;

    fn manifest() -> Manifest {
        loop {
            std::hint::black_box(());
        }
    }

    fn reconcile(_object: &Object<()>, _reads: &Reads) -> Result<Plan, Failure> {
        Ok(Plan::default())
    }
}

oarlock_sdk::export!(Describe);

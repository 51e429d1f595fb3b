//! A cold start with many parents in a simulated cluster: real time and memory for each, beside what the API server in
//! memory takes of it.
//!
//! Budgets: time and memory for each parent at most 1.5 times as much with ten times as many. The last line gives the
//! ratios of this run.

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark")]

use oarlock::{clock::Clock, run::start};
use oarlock_sim::{
    faults::{Link, Rules},
    simulation::Setting,
    world::{HOST, NAMESPACE, World},
};
use serde_json::{Value, json};
use std::{
    env, fs,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::{runtime::Builder, time::sleep};

const PARENTS: [usize; 2] = [10_000, 100_000];
const WORKERS: usize = 32;

/// What a start costs for each parent.
struct Cost {
    seconds: f64,
    bytes: f64,
}

fn main() {
    let cache =
        env::var("OARLOCK_SIM_CACHE").map_or_else(|_| env::temp_dir().join("oarlock-sim"), PathBuf::from);
    let setting = Setting::new(&cache).expect("the sandbox can be set up; run this with ./dev bench");
    let [few, many] = PARENTS.map(|parents| {
        let cost = cost(&setting, parents);
        let (micros, bytes) = (cost.seconds * 1e6, cost.bytes);
        println!("{parents} parents: {micros:.0} µs and {bytes:.0} bytes each, until all children are there");
        cost
    });
    let (time, memory) = (many.seconds / few.seconds, many.bytes / few.bytes);
    println!("ten times as many: {time:.2} x the time and {memory:.2} x the memory for each (budget 1.5 x)");
}

fn resident() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4096.0
}

fn widget(number: usize) -> Value {
    json!({
        "apiVersion": "cases.example.com/v1", "kind": "Widget",
        "metadata": {"name": format!("w{number}"), "namespace": NAMESPACE}, "spec": {"text": format!("t{number}")},
    })
}

fn children(world: &World) -> usize {
    world.server.objects("configmaps").keys().filter(|(namespace, _)| namespace == NAMESPACE).count()
}

fn cost(setting: &Setting, parents: usize) -> Cost {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let world = setting.world();
        world.server.forget_records();
        let before = children(&world);
        for number in 0..parents {
            world.server.create("bench", &widget(number)).expect("a parent can be made");
        }
        let (memory, started) = (resident(), Instant::now());
        let link = Link::new(&world.server, &Rules::new(1), HOST, 1);
        let clock = Clock::simulated(world.server.now());
        let host = start(setting.parts(&link, &clock, WORKERS, 1));
        while children(&world) < before + parents {
            sleep(Duration::from_secs(1)).await;
        }
        let cost = Cost {
            seconds: started.elapsed().as_secs_f64() / parents as f64,
            bytes: (resident() - memory) / parents as f64,
        };
        drop(host);
        cost
    })
}

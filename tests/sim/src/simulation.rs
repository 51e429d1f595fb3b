//! One run: the real host, a simulated world, a scenario. The seed decides everything.

use crate::{
    api::Record,
    cluster::Cluster,
    components::Components,
    faults::{Link, Rules, Standing},
    rest, safety,
    scenario::{Action, Scenario, Step},
    world::{HOST, HOST_NAMESPACE, World},
};
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use oarlock::{
    clock::Clock,
    config::{Config, Limits},
    decide::guest::engine::Engine,
    observe::client::Client,
    operate::metrics::Metrics,
    run::{Parts, Running, start},
};
use std::{
    cell::RefCell,
    fmt::{self, Display},
    net::SocketAddr,
    panic,
    path::{Path, PathBuf},
    sync::{Arc, Once},
    time::Duration,
};
use tokio::{
    runtime::{Builder, Handle},
    task::{JoinSet, yield_now},
    time::{Instant, sleep, sleep_until},
};

/// How long a world without faults may take to come to what its parents say: longer than any back-off of the host,
/// than its interval of audits, and than the API server's time-outs together.
const PATIENCE: Duration = Duration::from_mins(30);
/// How long what was begun may take to end: a list that hangs has a minute, and is tried again then.
const UNDER_WAY: Duration = Duration::from_mins(3);
/// For how long nothing may be written then.
const QUIET: Duration = Duration::from_hours(1);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_secs(1);
/// How often the host compares each watch with what there is.
const AUDIT: Duration = Duration::from_mins(5);
const WORKERS: usize = 4;

/// What all runs of a process share.
pub struct Setting {
    engine: Engine,
    components: Arc<Components>,
    cache_dir: PathBuf,
}

impl Setting {
    /// Sets up the sandbox; compiled components are kept in a folder between processes.
    ///
    /// # Errors
    /// The sandbox cannot be set up, or a component is not there.
    pub fn new(cache_dir: &Path) -> Result<Self> {
        watch_panics();
        // More than any number of runs at the same time needs: nobody may wait for a run in another thread.
        let engine = Engine::simulated(64, cache_dir)?;
        Ok(Self { engine, components: Arc::new(Components::read()?), cache_dir: cache_dir.to_owned() })
    }

    /// A cluster with the plugins' `ConfigMap`s in place.
    pub fn world(&self) -> World {
        World::new(&self.components)
    }

    /// What a host is made of that goes this way to its API server.
    pub fn parts(&self, link: &Link, clock: &Clock, workers: usize, seed: u64) -> Parts {
        let config = Config {
            namespace: HOST_NAMESPACE.to_owned(),
            workers,
            cache_dir: self.cache_dir.clone(),
            admin: SocketAddr::from(([127, 0, 0, 1], 0)),
            audit_interval: AUDIT,
            limits: Limits::STANDARD,
        };
        Parts {
            config,
            client: Client::new(link.client()),
            metrics: Arc::new(Metrics::new()),
            engine: self.engine.clone(),
            clock: clock.clone(),
            seed,
        }
    }
}

/// What is noted of a host that starts.
pub(crate) const START: &str = "the host starts";

/// What happened beside requests, and after how many of these.
#[derive(Clone, Debug)]
pub struct Note {
    /// Since the start.
    pub at: Duration,
    /// After so many requests.
    pub after: usize,
    /// For people.
    pub text: String,
}

/// What came of a run.
pub struct Ran {
    /// Every request.
    pub records: Vec<Record>,
    /// What else happened.
    pub notes: Vec<Note>,
    /// What must not have happened.
    pub failure: Option<Failure>,
}

/// What must not happen.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which rule it breaks.
    pub rule: Rule,
    /// How.
    pub text: String,
}

/// What must hold of every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing panics.
    NoPanic,
    /// A host that is gone leaves nothing running.
    NoTaskLeft,
    /// Every write is one that may be (S2 to S7).
    Safe,
    /// Once faults have ended, everything becomes as it should be (L1, L2).
    Live,
    /// Then nothing is written any more (S14).
    Silent,
    /// Two runs of a seed are the same.
    Determined,
    /// Children come and go as often as without faults.
    Counted,
}

impl Failure {
    pub(crate) fn new(rule: Rule, error: impl Display) -> Self {
        Self { rule, text: format!("{error:#}") }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

thread_local! {
    /// The panics of this thread since it was last asked.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Remembers every panic, also those that the host catches.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
            before(info);
        }));
    });
}

/// Runs a scenario in a runtime of its own, in which time passes only when everybody waits.
///
/// # Errors
/// There is no runtime.
pub fn run(setting: &Setting, scenario: &Scenario) -> Result<Ran> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    PANICS.take();
    let ran = runtime.block_on(async {
        let mut run = Run::new(setting, scenario);
        let failure = run.all(scenario).await.err();
        let (records, notes) = (run.records(), std::mem::take(&mut run.notes));
        let left = run.end().await.err().map(|error| Failure::new(Rule::NoTaskLeft, error));
        Ran { records, notes, failure: failure.or(left) }
    });
    let panic = PANICS.take().first().map(|panic| Failure::new(Rule::NoPanic, panic));
    let unsafe_write = || {
        safety::check(scenario, &ran.records, &ran.notes).err().map(|error| Failure::new(Rule::Safe, error))
    };
    let failure = panic.or_else(unsafe_write).or(ran.failure);
    Ok(Ran { failure, ..ran })
}

struct Run<'a> {
    setting: &'a Setting,
    world: World,
    rng: Rng,
    rules: Rules,
    standing: Vec<Standing>,
    link: Link,
    clock: Clock,
    host: Option<Running>,
    cluster: JoinSet<()>,
    notes: Vec<Note>,
    tasks_before: usize,
}

impl<'a> Run<'a> {
    fn new(setting: &'a Setting, scenario: &Scenario) -> Self {
        let mut rng = Rng::with_seed(scenario.seed);
        let tasks_before = Handle::current().metrics().num_alive_tasks();
        let world = setting.world();
        let rules = Rules::new(rng.u64(..));
        let link = Link::new(&world.server, &rules, HOST, rng.u64(..));
        let mut cluster = JoinSet::new();
        let controllers = Cluster::new(&world.server, rng.u64(..));
        cluster.spawn(async { match controllers.run().await {} });
        let clock = Clock::simulated(world.server.now());
        Self {
            setting,
            world,
            rng,
            rules,
            standing: Vec::new(),
            link,
            clock,
            host: None,
            cluster,
            notes: Vec::new(),
            tasks_before,
        }
    }

    fn records(&self) -> Vec<Record> {
        self.world.server.records(0)
    }

    fn note(&mut self, text: impl Into<String>) {
        let server = &self.world.server;
        self.notes.push(Note { at: server.elapsed(), after: server.records_count(), text: text.into() });
    }

    fn start(&mut self) {
        self.note(START);
        let parts = self.setting.parts(&self.link, &self.clock, WORKERS, self.rng.u64(..));
        self.host = Some(start(parts));
    }

    async fn all(&mut self, scenario: &Scenario) -> Result<(), Failure> {
        self.start();
        self.settle().await?;
        for (number, Step { after, action }) in scenario.steps.iter().enumerate() {
            self.pass(Instant::now() + *after).await;
            if scenario.is_paced && !action.is_fault() {
                self.mend();
                self.settle().await?;
            }
            self.note(format!("step {number}: {action:?}"));
            self.take(action).await;
        }
        self.mend();
        self.world.calm();
        self.note("all faults end");
        self.settle().await?;
        // What is still on its way arrives, or is given up.
        self.pass(Instant::now() + UNDER_WAY).await;
        self.settle().await?;
        let (from, begun) = (self.world.server.records_count(), self.world.server.elapsed());
        self.note("nothing may be written from here on");
        sleep(QUIET).await;
        let mut writes = Vec::new();
        self.world.server.each_record(from, |record| {
            // Events tell of what was written before, each in its turn.
            let is_late = record.asked.resource == "events" && record.at < begun + Duration::from_mins(1);
            if record.user == HOST && record.asked.writes() && !is_late {
                writes.push(format!("{} {} at {:?}", record.asked.verb, record.asked.target(), record.at));
            }
        });
        if !writes.is_empty() {
            return Err(Failure::new(Rule::Silent, format!("written at rest: {}", writes.join(", "))));
        }
        rest::check(&self.world)
            .context("an hour later")
            .map_err(|error| Failure::new(Rule::Live, format!("{error:#}")))
    }

    /// Lets time pass, and the host die when it has to.
    async fn pass(&mut self, until: Instant) {
        loop {
            tokio::select! {
                biased;
                () = self.link.crashed() => self.die().await,
                () = sleep_until(until) => return,
            }
        }
    }

    /// Waits until the world is as its parents say.
    async fn settle(&mut self) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.pass(Instant::now() + LOOK).await;
            match rest::check(&self.world) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= end => {
                    let error = error.context(format!("not at rest after {PATIENCE:?}"));
                    return Err(Failure::new(Rule::Live, format!("{error:#}")));
                }
                Err(_) => self.world.approve(),
            }
        }
    }

    fn mend(&mut self) {
        self.standing.clear();
    }

    async fn take(&mut self, action: &Action) {
        match action {
            Action::Kill { turns } => {
                for _ in 0..*turns {
                    yield_now().await;
                }
                self.die().await;
            }
            Action::Crash(crash) => self.link.crash(*crash),
            Action::Stop => {
                if let Some(host) = self.host.take() {
                    host.stop().await;
                }
                self.come_back().await;
            }
            Action::Inject(rule) => self.standing.push(self.rules.rule(rule.clone())),
            Action::Mend => self.mend(),
            Action::Jump { seconds } => self.clock.jump(*seconds),
            action => self.world.act(action),
        }
    }

    /// The host dies, with all it knows.
    async fn die(&mut self) {
        self.host = None;
        self.note("the host is dead");
        self.come_back().await;
    }

    async fn come_back(&mut self) {
        sleep(Duration::from_millis(self.rng.u64(0..3_000))).await;
        self.start();
    }

    /// Nothing may be left of anybody.
    async fn end(mut self) -> Result<()> {
        self.cluster.shutdown().await;
        let tasks_before = self.tasks_before;
        drop(self);
        // Tasks that were told to end do so when it is their turn, and those that they held after them.
        for _ in 0..100 {
            yield_now().await;
        }
        let left = Handle::current().metrics().num_alive_tasks() - tasks_before;
        ensure!(left == 0, "{left} tasks are left over");
        Ok(())
    }
}

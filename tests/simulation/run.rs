//! Runs a case from its beginning to its end.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use crate::api::{Api, kinds};
use crate::case::{Case, Trouble};
use crate::cluster::{Cluster, Nodes, Pace};
use crate::course::Position;
use crate::coverage::Coverage;
use crate::ending;
use crate::observer::{Found, Observer};
use crate::panics;
use crate::process::{Machine, Plug};
use crate::script::expect::unmet;
use crate::script::manifests::Place;
use crate::script::perform::Performer;
use crate::script::step::{Act, Pause};
use crate::time::Time;
use crate::trace::Trace;
use crate::transport::reliable;
use crate::world::Shared;
use sluice_testkit::invariants::{Breach, Invariant};

/// All is quiet when nothing has changed for so long: longer than Sluice ever waits before it tries something again.
const QUIET: Duration = Duration::from_secs(75);
/// People go on when nothing has changed for so long.
const LULL: Duration = Duration::from_secs(15);
/// What hasn't come after so long never will.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// What came of a case.
#[derive(Debug)]
pub struct Report {
    /// What must not have been.
    pub found: Vec<Found>,
    /// Tells histories apart.
    pub fingerprint: u64,
    /// What went wrong, so that it can be listed.
    pub trouble: Trouble,
    /// Through which histories it went.
    pub coverage: Coverage,
    /// The states that upgrades in steps went through.
    pub course: Vec<Position>,
    /// How many objects of each kind there are in the end, but for Events.
    pub left: BTreeMap<String, usize>,
    /// How many requests Sluice made.
    pub requests: u64,
    /// The numbers of those that wrote, while something could go wrong.
    pub writes: Vec<u64>,
    /// How long it took there.
    pub lasted: Duration,
    /// What was said over the wire, when that was wanted.
    pub text: String,
}

/// Runs a case; `readable` keeps what was said over the wire, for a person to read.
///
/// # Panics
/// When the simulation itself does, and it says with which seed. What panics in a task of Sluice is in the report.
pub fn run(case: &Case, readable: bool) -> Report {
    // kube-rs draws the jitter of its pauses from here.
    fastrand::seed(case.seed);
    panics::forget();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    let played = AssertUnwindSafe(|| runtime.block_on(async { Run::new(case, readable).play(case).await }));
    let mut report = std::panic::catch_unwind(played).unwrap_or_else(|_| panic!("in seed {}", case.seed));
    let at = Timestamp::UNIX_EPOCH;
    let panicked = panics::seen().into_iter().map(|what| Found { at, breach: Breach::of(Invariant::Restart, what) });
    report.found.extend(panicked);
    report
}

struct Run {
    machine: Machine,
}

impl Run {
    fn new(case: &Case, readable: bool) -> Self {
        let (time, chance) = (Time::start(), case.chance());
        let pace = Pace::uneven(chance.of("pace"));
        let cluster = Cluster::new(Nodes::alike(4), pace, case.fates());
        let world = Shared::new(time, Api::new(time.now()), cluster, Observer::new());
        let trace = if readable { Trace::readable() } else { Trace::default() };
        let machine = Machine {
            world,
            faults: Arc::new(Mutex::new(case.faults())),
            trace: Arc::new(Mutex::new(trace)),
            chance: chance.of("wire"),
            plug: Plug::default(),
        };
        Self { machine }
    }

    async fn play(self, case: &Case) -> Report {
        let (world, machine) = (self.machine.world.clone(), self.machine.clone());
        tokio::select! {
            biased;
            () = world.live() => {}
            () = machine.run() => {}
            () = self.script(case) => {}
        }
        self.report()
    }

    /// What people do, and what has to come of it in the end.
    async fn script(&self, case: &Case) {
        let (client, place) = (reliable(&self.machine.world), Place::new("team"));
        let people = Performer::new(&client, &place);
        people.set_up(&case.script.scene).await.expect("the scene is set");
        for step in &case.script.steps {
            match step.after {
                Pause::Rest => drop(self.rest(LULL).await),
                Pause::Millis(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
            }
            self.act(&people, &step.act).await;
        }
        self.machine.faults.lock().expect("one thread").calm();
        self.machine.world.with(|world| world.cluster.heal(self.machine.world.time.now()));
        self.quiet_and_right("when nothing goes wrong any more").await;
        for act in case.script.unblock() {
            self.act(&people, &act).await;
        }
        self.quiet_and_right("when there is enough for all").await;
        self.as_asked_for(case, &place);
        self.restart_changes_nothing().await;
    }

    async fn act(&self, people: &Performer<'_>, act: &Act) {
        self.remark(&format!("{act:?}"));
        match tokio::time::timeout(PATIENCE, people.perform(act)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.remark(&format!("which failed: {error}")),
            Err(_) => {
                let what = format!("{act:?} can't be done: what it waits for hasn't come in {PATIENCE:?}");
                self.breach(Breach::of(Invariant::Liveness, what));
            }
        }
    }

    /// Waits until nothing has changed for so long; whether that ever was.
    async fn rest(&self, quiet: Duration) -> bool {
        let begun = self.machine.world.time.elapsed();
        loop {
            let quiet_at = self.machine.world.changed_at() + quiet;
            if quiet_at <= self.machine.world.time.now() {
                return true;
            }
            if self.machine.world.time.elapsed() > begun + PATIENCE {
                return false;
            }
            tokio::time::sleep_until(self.machine.world.time.instant(quiet_at)).await;
        }
    }

    async fn quiet_and_right(&self, when: &str) {
        if !self.rest(QUIET).await {
            let minutes = PATIENCE.as_secs() / 60;
            return self.breach(Breach::of(Invariant::Liveness, format!("no rest within {minutes} minutes, {when}")));
        }
        self.remark(&format!("at rest, {when}"));
        for breach in self.machine.world.with(|world| ending::breaches(world)) {
            self.breach(Breach { what: format!("{}, {when}", breach.what), ..breach });
        }
    }

    /// The end is the one that was asked for, whatever happened on the way.
    fn as_asked_for(&self, case: &Case, place: &Place) {
        let unmet = self.machine.world.with(|world| {
            let kinds = ["RayService", "RayCluster", "Workload", "Pod", "Service"];
            unmet(&case.script, place, kinds.iter().flat_map(|kind| world.api.list(kind)).map(AsRef::as_ref))
        });
        unmet.into_iter().for_each(|what| self.breach(Breach::of(Invariant::Restart, what)));
    }

    /// A process that starts at rest finds nothing to do.
    async fn restart_changes_nothing(&self) {
        let before = self.machine.world.changed_at();
        self.machine.plug.pull();
        tokio::time::sleep(LULL).await;
        self.rest(LULL).await;
        let changed = self.machine.world.with(|world| world.changed_since(before));
        if !changed.is_empty() {
            let what = format!("a fresh process changed {}, where all was at rest", changed.join(", "));
            self.breach(Breach::of(Invariant::Restart, what));
        }
    }

    fn breach(&self, breach: Breach) {
        self.machine.world.with(|world| world.observer.breach(self.machine.world.time.now(), breach));
    }

    fn remark(&self, remark: &str) {
        self.machine.trace.lock().expect("one thread").remark(self.machine.world.time.elapsed(), remark);
    }

    fn report(&self) -> Report {
        let faults = self.machine.faults.lock().expect("one thread");
        let trace = self.machine.trace.lock().expect("one thread");
        self.machine.world.with(|world| Report {
            found: world.observer.found().to_vec(),
            fingerprint: trace.fingerprint(),
            trouble: Trouble { faults: faults.struck().clone(), fates: world.cluster.struck().clone() },
            coverage: world.observer.coverage.clone(),
            course: world.observer.course.positions().to_vec(),
            left: left(&world.api),
            requests: faults.requests(),
            writes: faults.writes().to_vec(),
            lasted: self.machine.world.time.elapsed(),
            text: trace.text().to_owned(),
        })
    }
}

fn left(api: &Api) -> BTreeMap<String, usize> {
    let kinds = kinds::all().iter().map(|kind| &kind.kind).filter(|kind| *kind != "Event");
    kinds.map(|kind| (kind.clone(), api.list(kind).count())).filter(|(_, count)| *count > 0).collect()
}

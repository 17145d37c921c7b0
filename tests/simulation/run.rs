//! Runs one case from start to end.

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

/// Time without a change after which the system counts as quiescent: longer than any retry interval
/// of Sluice.
const QUIET: Duration = Duration::from_secs(75);
/// Time without a change after which the script continues.
const LULL: Duration = Duration::from_secs(15);
/// Time after which something expected counts as never happening.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// Violations of invariants.
    pub found: Vec<Found>,
    /// Hash of all requests and responses; equal only for equal histories.
    pub fingerprint: u64,
    /// The injected faults, for replay in a case that lists them.
    pub trouble: Trouble,
    /// Histories that occurred.
    pub coverage: Coverage,
    /// Capacity and traffic states of incremental upgrades.
    pub course: Vec<Position>,
    /// Number of objects of each kind at the end, without Events.
    pub left: BTreeMap<String, usize>,
    /// Number of requests that Sluice sent.
    pub requests: u64,
    /// Request numbers of the writes sent while faults were injected.
    pub writes: Vec<u64>,
    /// Virtual duration of the run.
    pub lasted: Duration,
    /// Readable log of the wire. Empty unless requested.
    pub text: String,
}

/// Runs a case. `readable` keeps a readable log of the wire.
///
/// # Panics
/// When the simulation itself panics; the message has the seed. Panics in tasks of Sluice are in
/// the report.
pub fn run(case: &Case, readable: bool) -> Report {
    // kube-rs draws its backoff jitter from this generator.
    fastrand::seed(case.seed);
    panics::forget();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    let body = AssertUnwindSafe(|| runtime.block_on(async { Run::new(case, readable).play(case).await }));
    let mut report = std::panic::catch_unwind(body).unwrap_or_else(|_| panic!("in seed {}", case.seed));
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

    /// Executes the script, stops the faults, and checks the final state.
    async fn script(&self, case: &Case) {
        let (client, place) = (reliable(&self.machine.world), Place::new("team"));
        let people = Performer::new(&client, &place);
        people.set_up(&case.script.scene).await.expect("the setup is accepted");
        for step in &case.script.steps {
            match step.after {
                Pause::Rest => drop(self.rest(LULL).await),
                Pause::Millis(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
            }
            self.act(&people, &step.act).await;
        }
        self.machine.faults.lock().expect("one thread").calm();
        self.machine.world.with(|world| world.cluster.heal(self.machine.world.time.now()));
        self.quiet_and_right("after the last fault").await;
        for act in case.script.unblock() {
            self.act(&people, &act).await;
        }
        self.quiet_and_right("with quota for every request").await;
        self.as_asked_for(case, &place);
        self.restart_changes_nothing().await;
    }

    async fn act(&self, people: &Performer<'_>, act: &Act) {
        self.remark(&format!("{act:?}"));
        match tokio::time::timeout(PATIENCE, people.perform(act)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.remark(&format!("action failed: {error}")),
            Err(_) => {
                let what = format!("{act:?} did not finish within {PATIENCE:?}");
                self.breach(Breach::of(Invariant::Liveness, what));
            }
        }
    }

    /// Waits until nothing has changed for `quiet`. Returns false if that takes longer than
    /// `PATIENCE`.
    async fn rest(&self, quiet: Duration) -> bool {
        let started = self.machine.world.time.elapsed();
        loop {
            let quiet_at = self.machine.world.changed_at() + quiet;
            if quiet_at <= self.machine.world.time.now() {
                return true;
            }
            if self.machine.world.time.elapsed() > started + PATIENCE {
                return false;
            }
            tokio::time::sleep_until(self.machine.world.time.instant(quiet_at)).await;
        }
    }

    async fn quiet_and_right(&self, when: &str) {
        if !self.rest(QUIET).await {
            let minutes = PATIENCE.as_secs() / 60;
            return self
                .breach(Breach::of(Invariant::Liveness, format!("not quiescent within {minutes} minutes, {when}")));
        }
        self.remark(&format!("quiescent, {when}"));
        for breach in self.machine.world.with(|world| ending::breaches(world)) {
            self.breach(Breach { what: format!("{}, {when}", breach.what), ..breach });
        }
    }

    /// Checks that the final state is the desired one.
    fn as_asked_for(&self, case: &Case, place: &Place) {
        let unmet = self.machine.world.with(|world| {
            let kinds = ["RayService", "RayCluster", "Workload", "Pod", "Service"];
            unmet(&case.script, place, kinds.iter().flat_map(|kind| world.api.list(kind)).map(AsRef::as_ref))
        });
        unmet.into_iter().for_each(|what| self.breach(Breach::of(Invariant::Restart, what)));
    }

    /// Checks that a process that starts in a quiescent system changes nothing.
    async fn restart_changes_nothing(&self) {
        let before = self.machine.world.changed_at();
        self.machine.plug.pull();
        tokio::time::sleep(LULL).await;
        self.rest(LULL).await;
        let changed = self.machine.world.with(|world| world.changed_since(before));
        if !changed.is_empty() {
            let what = format!("a restarted process changed {} in a quiescent system", changed.join(", "));
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

//! Runs one case from start to end.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use crate::api::{ApiServer, InstalledPolicies, kinds};
use crate::case::{Case, FaultSchedule};
use crate::cluster::{Latencies, MAX_BACKOFF, Nodes, SimulatedCluster};
use crate::coverage::Coverage;
use crate::observer::{Observer, TimedViolation};
use crate::panic_capture;
use crate::process::{KillSwitch, ProcessRunner};
use crate::quiescence;
use crate::rollout_trace::RolloutState;
use crate::script::executor::Executor;
use crate::script::expected_state::deviations;
use crate::script::manifests::ScriptNamespace;
use crate::script::step::{Delay, UserAction};
use crate::time::VirtualTime;
use crate::transport::reliable_client;
use crate::wire_log::WireLog;
use crate::world::SharedWorld;
use sluice_testkit::invariants::{Invariant, Violation};

/// Time without a change after which the system counts as quiescent: longer than any retry interval
/// of Sluice.
const QUIESCENCE_PERIOD: Duration = Duration::from_secs(75);
/// Time without a change after which the script continues.
const SCRIPT_PAUSE: Duration = Duration::from_secs(15);
/// Time after which something expected counts as never happening.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// Violations of invariants.
    pub violations: Vec<TimedViolation>,
    /// Hash of all requests and responses; equal only for equal histories.
    pub fingerprint: u64,
    /// The injected faults, for replay in a case that lists them.
    pub faults: FaultSchedule,
    /// Histories that occurred.
    pub coverage: Coverage,
    /// Capacity and traffic states of incremental upgrades.
    pub rollout_trace: Vec<RolloutState>,
    /// Number of objects of each kind at the end, without Events.
    pub remaining_objects: BTreeMap<String, usize>,
    /// Number of requests that Sluice sent.
    pub requests: u64,
    /// Request numbers of the writes sent while faults were injected.
    pub writes: Vec<u64>,
    /// Virtual duration of the run.
    pub virtual_time: Duration,
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
    panic_capture::reset();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    let body = AssertUnwindSafe(|| runtime.block_on(async { Run::new(case, readable).execute(case).await }));
    let mut report = std::panic::catch_unwind(body).unwrap_or_else(|_| panic!("in seed {}", case.seed));
    let at = Timestamp::UNIX_EPOCH;
    let panicked = panic_capture::captured()
        .into_iter()
        .map(|what| TimedViolation { at, violation: Violation::new(Invariant::Restart, what) });
    report.violations.extend(panicked);
    report
}

struct Run {
    machine: ProcessRunner,
}

impl Run {
    fn new(case: &Case, readable: bool) -> Self {
        let (time, chance) = (VirtualTime::start(), case.random());
        let pace = Latencies::varied(chance.subject("pace"));
        let cluster = SimulatedCluster::new(Nodes::uniform(4), pace, case.cluster_faults());
        let policies = if case.without_policies { InstalledPolicies::None } else { InstalledPolicies::All };
        let api = ApiServer::new(time.now()).with_policies(policies);
        let world = SharedWorld::new(time, api, cluster, Observer::new());
        let trace = if readable { WireLog::readable() } else { WireLog::default() };
        let machine = ProcessRunner {
            world,
            faults: Arc::new(Mutex::new(case.request_faults())),
            wire_log: Arc::new(Mutex::new(trace)),
            random: chance.subject("wire"),
            kill_switch: KillSwitch::default(),
            charges_credits: case.script.setup.credits,
        };
        Self { machine }
    }

    async fn execute(self, case: &Case) -> Report {
        let (world, machine) = (self.machine.world.clone(), self.machine.clone());
        tokio::select! {
            biased;
            () = world.run_cluster() => {}
            () = machine.run() => {}
            () = self.run_script(case) => {}
        }
        self.report()
    }

    /// Executes the script, stops the faults, and checks the final state.
    async fn run_script(&self, case: &Case) {
        let (client, place) =
            (reliable_client(&self.machine.world), ScriptNamespace::of_setup("team", &case.script.setup));
        let people = Executor::new(&client, &place);
        people.set_up(&case.script.setup).await.expect("the setup is accepted");
        for step in &case.script.steps {
            match step.after {
                Delay::UntilQuiescent => drop(self.wait_until_quiescent(SCRIPT_PAUSE).await),
                Delay::Millis(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
            }
            self.execute_action(&people, &step.act).await;
        }
        self.execute_action(&people, &UserAction::LimitPods { pods: None, cpu: None }).await;
        self.machine.faults.lock().expect("one thread").stop();
        self.machine.world.with(|world| world.cluster.disable_faults(self.machine.world.time.now()));
        self.check_quiescent_state("after the last fault").await;
        for act in case.script.unblocking_actions() {
            self.execute_action(&people, &act).await;
        }
        self.check_quiescent_state("with quota for every request").await;
        self.check_desired_state(case, &place);
        self.check_restart_is_idle().await;
    }

    async fn execute_action(&self, people: &Executor<'_>, act: &UserAction) {
        self.remark(&format!("{act:?}"));
        match act {
            UserAction::BackUp => return self.machine.world.with(|world| world.api.back_up()),
            UserAction::Restore => {
                return self.machine.world.with(|world| world.restore(self.machine.world.time.now()));
            }
            _ => {}
        }
        match tokio::time::timeout(TIMEOUT, people.execute(act)).await {
            Ok(Ok(())) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => panic!("{act:?}: {}", status.message),
            Ok(Err(error)) => self.remark(&format!("action failed: {error}")),
            Err(_) => {
                let what = format!("{act:?} did not finish within {TIMEOUT:?}");
                self.record_violation(Violation::new(Invariant::Liveness, what));
            }
        }
    }

    /// Waits until nothing has changed for `quiet`. Returns false if that takes longer than
    /// [`TIMEOUT`].
    async fn wait_until_quiescent(&self, quiet: Duration) -> bool {
        let started = self.machine.world.time.elapsed();
        loop {
            let quiet_at = self.machine.world.last_change() + quiet;
            if quiet_at <= self.machine.world.time.now() {
                return true;
            }
            if self.machine.world.time.elapsed() > started + TIMEOUT {
                return false;
            }
            tokio::time::sleep_until(self.machine.world.time.instant(quiet_at)).await;
        }
    }

    /// Waits until the system is quiescent and no Job waits for the end of its backoff. A Job whose pods
    /// are rejected waits again and again, so only syncs due within [`MAX_BACKOFF`] are awaited. Returns
    /// false if the system does not become quiescent.
    async fn wait_until_jobs_are_synced(&self) -> bool {
        let latest = self.machine.world.time.now() + MAX_BACKOFF;
        loop {
            if !self.wait_until_quiescent(QUIESCENCE_PERIOD).await {
                return false;
            }
            let next = self.machine.world.with(|world| world.cluster.next_job_sync());
            let Some(due) = next.filter(|due| *due <= latest) else { return true };
            tokio::time::sleep_until(self.machine.world.time.instant(due + SCRIPT_PAUSE)).await;
        }
    }

    async fn check_quiescent_state(&self, when: &str) {
        if !self.wait_until_jobs_are_synced().await {
            let minutes = TIMEOUT.as_secs() / 60;
            return self.record_violation(Violation::new(
                Invariant::Rest,
                format!("not quiescent within {minutes} minutes, {when}"),
            ));
        }
        self.remark(&format!("quiescent, {when}"));
        for breach in self.machine.world.with(|world| quiescence::violations(world)) {
            self.record_violation(Violation { message: format!("{}, {when}", breach.message), ..breach });
        }
    }

    /// Checks that the final state is the desired one.
    fn check_desired_state(&self, case: &Case, place: &ScriptNamespace) {
        let unmet = self.machine.world.with(|world| {
            let kinds = ["RayService", "RayCluster", "Job", "Workload", "Pod", "Service"];
            deviations(&case.script, place, kinds.iter().flat_map(|kind| world.api.list(kind)).map(AsRef::as_ref))
        });
        unmet.into_iter().for_each(|what| self.record_violation(Violation::new(Invariant::Rest, what)));
    }

    /// Checks that a process that starts in a quiescent system changes nothing.
    async fn check_restart_is_idle(&self) {
        let before = self.machine.world.last_change();
        self.machine.kill_switch.kill();
        tokio::time::sleep(SCRIPT_PAUSE).await;
        self.wait_until_quiescent(SCRIPT_PAUSE).await;
        let changed = self.machine.world.with(|world| world.changed_since(before));
        if !changed.is_empty() {
            let what = format!("a restarted process changed {} in a quiescent system", changed.join(", "));
            self.record_violation(Violation::new(Invariant::Restart, what));
        }
    }

    fn record_violation(&self, breach: Violation) {
        self.machine.world.with(|world| world.observer.record_violation(self.machine.world.time.now(), breach));
    }

    fn remark(&self, remark: &str) {
        self.machine.wire_log.lock().expect("one thread").remark(self.machine.world.time.elapsed(), remark);
    }

    fn report(&self) -> Report {
        let faults = self.machine.faults.lock().expect("one thread");
        let trace = self.machine.wire_log.lock().expect("one thread");
        self.machine.world.with(|world| Report {
            violations: world.observer.violations().to_vec(),
            fingerprint: trace.fingerprint(),
            faults: FaultSchedule {
                requests: faults.injected().clone(),
                cluster: world.cluster.triggered_faults().clone(),
            },
            coverage: world.observer.coverage.clone(),
            rollout_trace: world.observer.rollout_trace.states().to_vec(),
            remaining_objects: count_objects(&world.api),
            requests: faults.requests(),
            writes: faults.writes().to_vec(),
            virtual_time: self.machine.world.time.elapsed(),
            text: trace.text().to_owned(),
        })
    }
}

fn count_objects(api: &ApiServer) -> BTreeMap<String, usize> {
    let kinds = kinds::all().iter().map(|kind| &kind.kind).filter(|kind| *kind != "Event");
    kinds.map(|kind| (kind.clone(), api.list(kind).count())).filter(|(_, count)| *count > 0).collect()
}

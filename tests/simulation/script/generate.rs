//! Generates plausible scripts from a seed.

use fastrand::Rng;

use super::desired_state::DesiredState;
use super::scenarios;
use super::setup::{
    Cohort, Flavor, Priority, Queue, Quota, ReclaimWithinCohort, ResourceAmounts, Setup, WithinClusterQueue,
};
use super::step::{Delay, Group, Pods, Script, ScriptStep, Service, UserAction};
use crate::rng::SeededRandom;

/// Options of a generated script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScriptOptions {
    /// Allows actions before the system is quiescent.
    pub(crate) mid_flight: bool,
    /// Allows cohorts.
    pub(crate) cohorts: bool,
    /// Allows priorities, and preemption by priority.
    pub(crate) priorities: bool,
    /// Maximum number of scenarios.
    pub(crate) max_scenarios: u32,
}

impl ScriptOptions {
    /// All features.
    pub(crate) const FULL: Self = Self { mid_flight: true, cohorts: true, priorities: true, max_scenarios: 4 };
    /// All features, with each action in a quiescent system.
    pub(crate) const QUIESCENT: Self = Self { mid_flight: false, ..Self::FULL };
}

/// Names of services, in order of creation.
const SERVICES: [&str; 3] = ["fruit", "chat", "rank"];
/// Maximum delay between actions in a busy system, in milliseconds.
const MAX_DELAY_MS: u32 = 5_000;

impl Script {
    /// Returns a script with these options.
    pub(crate) fn random(chance: &SeededRandom, shape: ScriptOptions) -> Self {
        let chance = chance.subject("script");
        let services = random_services(&mut chance.rng_for("services", 0));
        let scene = random_setup(&mut chance.rng_for("scene", 0), shape, &services);
        let mut author = ScriptBuilder::new(scene, shape);
        for (number, mut service) in (0..).zip(services) {
            let rng = &mut chance.rng_for("begin", number);
            service.queue = author.any_queue(rng);
            service.priority = author.any_priority(rng);
            author.push_action(rng, UserAction::PutService(service));
        }
        let count = chance.rng_for("stories", 0).u32(1..=shape.max_scenarios);
        for number in 0..count.into() {
            scenarios::append_scenario(&mut author, &mut chance.rng_for("story", number));
        }
        author.script
    }
}

/// Builds a script and tracks the desired state.
pub(super) struct ScriptBuilder {
    /// The script so far.
    pub(super) script: Script,
    /// The desired state after the script so far.
    pub(super) desired_state: DesiredState,
    options: ScriptOptions,
}

impl ScriptBuilder {
    fn new(scene: Setup, shape: ScriptOptions) -> Self {
        Self {
            desired_state: DesiredState::new(&scene),
            script: Script { setup: scene, steps: Vec::new() },
            options: shape,
        }
    }

    /// True if actions may start before the system is quiescent.
    pub(super) fn mid_flight(&self) -> bool {
        self.options.mid_flight
    }

    /// Appends an action after a random delay, or in a quiescent system.
    pub(super) fn push_action(&mut self, rng: &mut Rng, act: UserAction) {
        let after = match rng.u32(0..4) {
            0 if self.options.mid_flight => Delay::Millis(rng.u32(0..=300)),
            1 if self.options.mid_flight => Delay::Millis(rng.u32(0..=MAX_DELAY_MS)),
            _ => Delay::UntilQuiescent,
        };
        self.push(after, act);
    }

    /// Appends an action shortly after the previous one, if the options allow that.
    pub(super) fn push_action_soon(&mut self, rng: &mut Rng, act: UserAction) {
        let after = if self.options.mid_flight { Delay::Millis(rng.u32(0..=2_000)) } else { Delay::UntilQuiescent };
        self.push(after, act);
    }

    /// Appends an action in a quiescent system.
    pub(super) fn push_at_rest(&mut self, act: UserAction) {
        self.push(Delay::UntilQuiescent, act);
    }

    fn push(&mut self, after: Delay, mut act: UserAction) {
        // The outcome of a timeout depends on the speed of the control plane.
        if let UserAction::PutService(service) = &mut act
            && !self.options.mid_flight
        {
            service.admission_timeout = None;
        }
        self.desired_state.apply(&act);
        self.script.steps.push(ScriptStep { after, act });
    }

    /// Returns a random existing service, if any.
    pub(super) fn any_service(&self, rng: &mut Rng) -> Option<Service> {
        rng.choice(self.desired_state.services.values()).cloned()
    }

    /// Returns a random queue, or None once in 20 times.
    pub(super) fn any_queue(&self, rng: &mut Rng) -> Option<String> {
        let queue = rng.choice(&self.script.setup.queues)?;
        (rng.u32(0..20) > 0).then(|| queue.name.clone())
    }

    /// Returns a random priority class, or None half of the time.
    pub(super) fn any_priority(&self, rng: &mut Rng) -> Option<String> {
        let class = rng.choice(&self.script.setup.priorities)?;
        rng.bool().then(|| class.name.clone())
    }

    /// Returns the quota of a queue with this nominal quota of its first flavor.
    pub(super) fn quota_of(&self, queue: &str, nominal: ResourceAmounts) -> Vec<Quota> {
        let mut quotas = self.desired_state.quotas.get(queue).cloned().unwrap_or_default();
        for quota in quotas.iter_mut().take(1) {
            quota.nominal = nominal;
            // The lending limit cannot exceed the nominal quota.
            quota.lending = quota.lending.map(|limit| limit.component_min(nominal));
        }
        quotas
    }
}

fn random_services(rng: &mut Rng) -> Vec<Service> {
    let count = rng.usize(1..=SERVICES.len());
    SERVICES.iter().take(count).map(|name| random_service(rng, name)).collect()
}

/// Returns a random service without a queue.
pub(super) fn random_service(rng: &mut Rng, name: &str) -> Service {
    Service {
        name: name.to_owned(),
        queue: None,
        priority: None,
        pods: random_pods(rng),
        edition: 0,
        deletion_delay: rng.u32(0..=2),
        suspend: false,
        recreate: rng.u32(0..5) == 0,
        admission_timeout: (rng.u32(0..10) == 0).then(|| rng.u32(1..=40)),
        incremental: None,
    }
}

/// Returns the pods of a random small cluster.
pub(crate) fn random_pods(rng: &mut Rng) -> Pods {
    let groups = match rng.u32(0..10) {
        0 => 0,
        1..8 => 1,
        _ => 2,
    };
    let groups = ["small", "large"].iter().take(groups).map(|name| random_group(rng, name));
    let groups = groups.collect();
    Pods { version: 52, head: random_requests(rng, 0), groups }
}

/// Returns a random worker group.
pub(super) fn random_group(rng: &mut Rng, name: &str) -> Group {
    let hosts = if rng.u32(0..8) == 0 { 2 } else { 1 };
    let gpu = u32::from(rng.u32(0..4) == 0);
    Group { name: name.to_owned(), replicas: rng.u32(0..=2), hosts, size: random_requests(rng, gpu) }
}

/// Returns random requests of a pod. They are at least those of the init container of a worker,
/// 200m and 256Mi, which would count instead (KubeRay 1.7
/// `ray-operator/controllers/ray/common/pod.go`).
pub(super) fn random_requests(rng: &mut Rng, gpu: u32) -> ResourceAmounts {
    let cpu = rng.choice([200, 250, 500]).unwrap_or_default();
    let memory = rng.choice([256, 384, 512]).unwrap_or_default();
    ResourceAmounts { cpu, memory, gpu }
}

fn random_setup(rng: &mut Rng, shape: ScriptOptions, services: &[Service]) -> Setup {
    let flavors = if rng.u32(0..3) == 0 { vec!["on-demand", "spot"] } else { vec!["on-demand"] };
    let flavors: Vec<Flavor> =
        flavors.into_iter().map(|name| Flavor { name: name.into(), dedicated: rng.bool() }).collect();
    let count = rng.usize(1..=3);
    let cohort = (shape.cohorts && count > 1 && rng.u32(0..3) > 0).then(|| "all".to_owned());
    let demand =
        services.iter().fold(ResourceAmounts::default(), |sum, service| sum.plus(service.pods.total_requests()));
    let priorities = [("low", 1), ("high", 100)].map(|(name, value)| Priority { name: name.into(), value });
    let queues = ["team-a", "team-b", "team-c"].iter().take(count);
    Setup {
        queues: queues.map(|name| random_queue(rng, shape, name, cohort.clone(), &flavors, demand)).collect(),
        cohorts: cohort.filter(|_| rng.bool()).map(|name| Cohort { name, quotas: Vec::new() }).into_iter().collect(),
        priorities: if shape.priorities { priorities.into() } else { Vec::new() },
        flavors,
        gateways: false,
        credits: false,
    }
}

fn random_queue(
    rng: &mut Rng,
    shape: ScriptOptions,
    name: &str,
    cohort: Option<String>,
    flavors: &[Flavor],
    demand: ResourceAmounts,
) -> Queue {
    let is_shared = cohort.is_some();
    let quotas = flavors.iter().enumerate().map(|(number, flavor)| {
        let nominal = match (number, rng.u32(0..4)) {
            (0, 0) => demand.times(2),
            (0, _) => demand,
            (_, 0) => demand,
            _ => ResourceAmounts::default(),
        };
        let some =
            |rng: &mut Rng| (is_shared && rng.u32(0..4) == 0).then(|| random_requests(rng, 0).component_min(nominal));
        Quota { flavor: flavor.name.clone(), nominal, borrowing: some(rng), lending: some(rng) }
    });
    Queue {
        name: name.to_owned(),
        quotas: quotas.collect(),
        within_cluster_queue: rng
            .choice([
                Some(WithinClusterQueue::LowerPriority),
                Some(WithinClusterQueue::LowerOrNewerEqualPriority),
                None,
            ])
            .flatten()
            .filter(|_| shape.priorities),
        reclaim: rng
            .choice([Some(ReclaimWithinCohort::Any), Some(ReclaimWithinCohort::LowerPriority), None])
            .flatten()
            .filter(|_| is_shared),
        strict_fifo: rng.u32(0..5) == 0,
        cohort,
    }
}

/// Asserts that a script is the same after it was written to a file and read.
#[cfg(test)]
pub(super) fn assert_round_trips(script: &Script) {
    let text = serde_saphyr::to_string(script).expect("a script is plain data");

    let read: Script = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{text}{error}"));

    assert_eq!(&read, script, "{text}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn scripts(shape: ScriptOptions) -> impl Iterator<Item = Script> {
        (0..500).map(move |seed| Script::random(&SeededRandom::new(seed), shape))
    }

    #[test]
    fn a_script_round_trips_through_yaml() {
        scripts(ScriptOptions::FULL).for_each(|script| assert_round_trips(&script));
    }

    #[test]
    fn the_same_seed_gives_the_same_script() {
        let script = |seed| Script::random(&SeededRandom::new(seed), ScriptOptions::FULL);

        assert_eq!(script(7), script(7));
        assert_ne!(script(7), script(8));
    }

    #[test]
    fn no_script_moves_a_service_to_another_queue() {
        for script in scripts(ScriptOptions::FULL) {
            let mut desired = DesiredState::new(&script.setup);
            for step in &script.steps {
                if let UserAction::PutService(service) = &step.act
                    && let Some(existing) = desired.services.get(&service.name)
                {
                    assert_eq!(existing.queue, service.queue, "{script:?}");
                }
                desired.apply(&step.act);
            }
        }
    }

    #[test]
    fn every_action_occurs_in_some_script() {
        let mut done = BTreeSet::new();

        for script in scripts(ScriptOptions::FULL) {
            done.extend(script.steps.iter().map(|step| {
                let text = serde_json::to_value(&step.act).expect("an act is plain data");
                text.as_object().and_then(|act| act.keys().next().cloned()).unwrap_or_default()
            }));
        }

        let all = [
            "deleteCluster",
            "deleteOrphans",
            "deleteService",
            "editServeConfig",
            "putCluster",
            "putService",
            "resize",
            "scale",
            "scaleCluster",
            "setPriority",
            "setQuota",
            "setVersion",
            "stopLocalQueue",
            "stopQueue",
            "suspend",
        ];
        assert_eq!(done, all.map(str::to_owned).into());
    }

    #[test]
    fn actions_wait_for_quiescence_if_mid_flight_is_off() {
        for script in scripts(ScriptOptions::QUIESCENT) {
            assert!(script.steps.iter().all(|step| step.after == Delay::UntilQuiescent));
        }
    }

    #[test]
    fn unblocking_a_script_leaves_quota_for_the_desired_state() {
        for mut script in scripts(ScriptOptions::FULL) {
            let acts = script.unblocking_actions();
            script.steps.extend(acts.into_iter().map(|act| ScriptStep { after: Delay::UntilQuiescent, act }));

            let wishes = DesiredState::after_script(&script);

            for (queue, quotas) in &wishes.quotas {
                let demand = wishes.demand(queue);
                assert!(quotas.iter().all(|quota| quota.nominal.component_min(demand) == demand));
            }
            assert!(
                wishes.stop_policies.values().all(|stops| *stops == super::super::desired_state::StopPolicies::NONE)
            );
        }
    }
}

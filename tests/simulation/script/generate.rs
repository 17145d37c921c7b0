//! Generates plausible scripts from a seed.

use fastrand::Rng;

use super::scene::{Cohort, Flavor, Priority, Queue, Quota, Reclaim, Scene, Size, Within};
use super::step::{Act, Group, Pause, Pods, Script, Service, Step};
use super::stories;
use super::wishes::Wishes;
use crate::chance::Chance;

/// Options of a generated script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Allows actions before the system is quiescent.
    pub(crate) mid_flight: bool,
    /// Allows cohorts.
    pub(crate) cohorts: bool,
    /// Allows priorities, and preemption by priority.
    pub(crate) priorities: bool,
    /// Maximum number of scenarios.
    pub(crate) stories: u32,
}

impl Shape {
    /// All features.
    pub(crate) const FULL: Self = Self { mid_flight: true, cohorts: true, priorities: true, stories: 4 };
    /// All features, with each action in a quiescent system.
    pub(crate) const RESTING: Self = Self { mid_flight: false, ..Self::FULL };
}

/// Names of services, in order of creation.
const SERVICES: [&str; 3] = ["fruit", "chat", "rank"];
/// Maximum delay between actions in a busy system, in milliseconds.
const LONGEST_PAUSE: u32 = 5_000;

impl Script {
    /// Returns a script with these options.
    pub(crate) fn random(chance: &Chance, shape: Shape) -> Self {
        let chance = chance.of("script");
        let services = services(&mut chance.about("services", 0));
        let scene = scene(&mut chance.about("scene", 0), shape, &services);
        let mut author = Author::new(scene, shape);
        for (number, mut service) in (0..).zip(services) {
            let rng = &mut chance.about("begin", number);
            service.queue = author.any_queue(rng);
            service.priority = author.any_priority(rng);
            author.act(rng, Act::PutService(service));
        }
        let count = chance.about("stories", 0).u32(1..=shape.stories);
        for number in 0..count.into() {
            stories::tell(&mut author, &mut chance.about("story", number));
        }
        author.script
    }
}

/// Builds a script and tracks the desired state.
pub(super) struct Author {
    /// The script so far.
    pub(super) script: Script,
    /// The desired state after the script so far.
    pub(super) wishes: Wishes,
    shape: Shape,
}

impl Author {
    fn new(scene: Scene, shape: Shape) -> Self {
        Self { wishes: Wishes::new(&scene), script: Script { scene, steps: Vec::new() }, shape }
    }

    /// True if actions may start before the system is quiescent.
    pub(super) fn mid_flight(&self) -> bool {
        self.shape.mid_flight
    }

    /// Appends an action after a random delay, or in a quiescent system.
    pub(super) fn act(&mut self, rng: &mut Rng, act: Act) {
        let after = match rng.u32(0..4) {
            0 if self.shape.mid_flight => Pause::Millis(rng.u32(0..=300)),
            1 if self.shape.mid_flight => Pause::Millis(rng.u32(0..=LONGEST_PAUSE)),
            _ => Pause::Rest,
        };
        self.push(after, act);
    }

    /// Appends an action shortly after the previous one, if the options allow that.
    pub(super) fn act_soon(&mut self, rng: &mut Rng, act: Act) {
        let after = if self.shape.mid_flight { Pause::Millis(rng.u32(0..=2_000)) } else { Pause::Rest };
        self.push(after, act);
    }

    fn push(&mut self, after: Pause, mut act: Act) {
        // The outcome of a timeout depends on the speed of the control plane.
        if let Act::PutService(service) = &mut act
            && !self.shape.mid_flight
        {
            service.patience = None;
        }
        self.wishes.heed(&act);
        self.script.steps.push(Step { after, act });
    }

    /// Returns a random existing service, if any.
    pub(super) fn any_service(&self, rng: &mut Rng) -> Option<Service> {
        rng.choice(self.wishes.services.values()).cloned()
    }

    /// Returns a random queue, or None once in 20 times.
    pub(super) fn any_queue(&self, rng: &mut Rng) -> Option<String> {
        let queue = rng.choice(&self.script.scene.queues)?;
        (rng.u32(0..20) > 0).then(|| queue.name.clone())
    }

    /// Returns a random priority class, or None half of the time.
    pub(super) fn any_priority(&self, rng: &mut Rng) -> Option<String> {
        let class = rng.choice(&self.script.scene.priorities)?;
        rng.bool().then(|| class.name.clone())
    }

    /// Returns the quota of a queue with this nominal quota of its first flavor.
    pub(super) fn quota_of(&self, queue: &str, nominal: Size) -> Vec<Quota> {
        let mut quotas = self.wishes.quotas.get(queue).cloned().unwrap_or_default();
        for quota in quotas.iter_mut().take(1) {
            quota.nominal = nominal;
            // The lending limit cannot exceed the nominal quota.
            quota.lending = quota.lending.map(|limit| limit.least(nominal));
        }
        quotas
    }
}

fn services(rng: &mut Rng) -> Vec<Service> {
    let count = rng.usize(1..=SERVICES.len());
    SERVICES.iter().take(count).map(|name| service(rng, name)).collect()
}

/// Returns a random service without a queue.
pub(super) fn service(rng: &mut Rng, name: &str) -> Service {
    Service {
        name: name.to_owned(),
        queue: None,
        priority: None,
        pods: pods(rng),
        edition: 0,
        linger: rng.u32(0..=2),
        suspend: false,
        recreate: rng.u32(0..5) == 0,
        patience: (rng.u32(0..10) == 0).then(|| rng.u32(1..=40)),
        steps: None,
    }
}

/// Returns the pods of a random small cluster.
pub(crate) fn pods(rng: &mut Rng) -> Pods {
    let groups = match rng.u32(0..10) {
        0 => 0,
        1..8 => 1,
        _ => 2,
    };
    let groups = ["small", "large"].iter().take(groups).map(|name| group(rng, name));
    let groups = groups.collect();
    Pods { version: 52, head: size(rng, 0), groups }
}

/// Returns a random worker group.
pub(super) fn group(rng: &mut Rng, name: &str) -> Group {
    let hosts = if rng.u32(0..8) == 0 { 2 } else { 1 };
    let gpu = u32::from(rng.u32(0..4) == 0);
    Group { name: name.to_owned(), replicas: rng.u32(0..=2), hosts, size: size(rng, gpu) }
}

/// Returns random requests of a pod. They are at least those of the init container of a worker,
/// 200m and 256Mi, which would count instead (KubeRay 1.7
/// `ray-operator/controllers/ray/common/pod.go`).
pub(super) fn size(rng: &mut Rng, gpu: u32) -> Size {
    let cpu = rng.choice([200, 250, 500]).unwrap_or_default();
    let memory = rng.choice([256, 384, 512]).unwrap_or_default();
    Size { cpu, memory, gpu }
}

fn scene(rng: &mut Rng, shape: Shape, services: &[Service]) -> Scene {
    let flavors = if rng.u32(0..3) == 0 { vec!["on-demand", "spot"] } else { vec!["on-demand"] };
    let flavors: Vec<Flavor> =
        flavors.into_iter().map(|name| Flavor { name: name.into(), picky: rng.bool() }).collect();
    let count = rng.usize(1..=3);
    let cohort = (shape.cohorts && count > 1 && rng.u32(0..3) > 0).then(|| "all".to_owned());
    let demand = services.iter().fold(Size::default(), |sum, service| sum.plus(service.pods.total()));
    let priorities = [("low", 1), ("high", 100)].map(|(name, value)| Priority { name: name.into(), value });
    let queues = ["team-a", "team-b", "team-c"].iter().take(count);
    Scene {
        queues: queues.map(|name| queue(rng, shape, name, cohort.clone(), &flavors, demand)).collect(),
        cohorts: cohort.filter(|_| rng.bool()).map(|name| Cohort { name, quotas: Vec::new() }).into_iter().collect(),
        priorities: if shape.priorities { priorities.into() } else { Vec::new() },
        flavors,
        gateways: false,
    }
}

fn queue(rng: &mut Rng, shape: Shape, name: &str, cohort: Option<String>, flavors: &[Flavor], demand: Size) -> Queue {
    let is_shared = cohort.is_some();
    let quotas = flavors.iter().enumerate().map(|(number, flavor)| {
        let nominal = match (number, rng.u32(0..4)) {
            (0, 0) => demand.times(2),
            (0, _) => demand,
            (_, 0) => demand,
            _ => Size::default(),
        };
        let some = |rng: &mut Rng| (is_shared && rng.u32(0..4) == 0).then(|| size(rng, 0).least(nominal));
        Quota { flavor: flavor.name.clone(), nominal, borrowing: some(rng), lending: some(rng) }
    });
    Queue {
        name: name.to_owned(),
        quotas: quotas.collect(),
        within: rng
            .choice([Some(Within::LowerPriority), Some(Within::LowerOrNewerEqualPriority), None])
            .flatten()
            .filter(|_| shape.priorities),
        reclaim: rng.choice([Some(Reclaim::Any), Some(Reclaim::LowerPriority), None]).flatten().filter(|_| is_shared),
        strict: rng.u32(0..5) == 0,
        cohort,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn scripts(shape: Shape) -> impl Iterator<Item = Script> {
        (0..500).map(move |seed| Script::random(&Chance::new(seed), shape))
    }

    #[test]
    fn a_script_round_trips_through_yaml() {
        for script in scripts(Shape::FULL) {
            let text = serde_saphyr::to_string(&script).expect("a script is plain data");

            let read: Script = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{text}{error}"));

            assert_eq!(read, script, "{text}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_script() {
        let script = |seed| Script::random(&Chance::new(seed), Shape::FULL);

        assert_eq!(script(7), script(7));
        assert_ne!(script(7), script(8));
    }

    #[test]
    fn every_action_occurs_in_some_script() {
        let mut done = BTreeSet::new();

        for script in scripts(Shape::FULL) {
            done.extend(script.steps.iter().map(|step| {
                let text = serde_json::to_value(&step.act).expect("an act is plain data");
                text.as_object().and_then(|act| act.keys().next().cloned()).unwrap_or_default()
            }));
        }

        let all = [
            "deleteCluster",
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
        for script in scripts(Shape::RESTING) {
            assert!(script.steps.iter().all(|step| step.after == Pause::Rest));
        }
    }

    #[test]
    fn unblocking_a_script_leaves_quota_for_the_desired_state() {
        for mut script in scripts(Shape::FULL) {
            let acts = script.unblock();
            script.steps.extend(acts.into_iter().map(|act| Step { after: Pause::Rest, act }));

            let wishes = Wishes::of(&script);

            for (queue, quotas) in &wishes.quotas {
                let demand = wishes.demand(queue);
                assert!(quotas.iter().all(|quota| quota.nominal.least(demand) == demand));
            }
            assert!(wishes.stopped.values().all(|stops| *stops == super::super::wishes::Stops::NONE));
        }
    }
}

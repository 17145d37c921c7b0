//! Generates scripts with batch/v1 Jobs, from a seed.

use fastrand::Rng;

use super::desired_state::DesiredState;
use super::generate::random_requests;
use super::job_step::{BatchJob, Completions, Creation, JobAction, PodState, Propagation};
use super::setup::{Priority, Queue, Quota, ResourceAmounts, Setup, WithinClusterQueue};
use super::step::{Delay, Script, ScriptStep, StopPolicy, UserAction};
use crate::rng::SeededRandom;

/// Queues of the jobs, each with a ClusterQueue of its own.
pub(super) const JOB_QUEUES: [&str; 2] = ["team-a", "team-b"];
/// Names of Jobs, in order of creation.
const JOBS: [&str; 4] = ["sum", "drain", "index", "late"];
/// Maximum delay between actions in a busy system, in milliseconds.
const MAX_DELAY_MS: u32 = 10_000;
/// Maximum number of pods of a Job.
const MAX_PARALLELISM: u32 = 4;

impl Script {
    /// Returns a script with a few Jobs, more or less quota than they need, and changes of Jobs,
    /// pods, queues and quota in any order.
    pub(crate) fn jobs(chance: &SeededRandom) -> Self {
        let rng = &mut chance.subject("script").rng_for("jobs", 0);
        let jobs: Vec<BatchJob> =
            JOBS.iter().take(rng.usize(1..JOBS.len())).map(|name| random_job(rng, name)).collect();
        let demand = jobs.iter().fold(ResourceAmounts::default(), |sum, job| sum.plus(job.total_requests()));
        let mut author = JobScriptBuilder { script: Self { setup: two_queues(rng, demand), steps: Vec::new() } };
        for job in jobs {
            author.push(rng, UserAction::Job(JobAction::Put(job)));
        }
        for number in 0..chance.subject("script").rng_for("length", 0).u64(2..=12) {
            let rng = &mut chance.subject("script").rng_for("act", number);
            let act = random_action(&author.desired_state(), rng, demand);
            author.push(rng, act);
        }
        charge_credits(&mut author.script, &chance.subject("script"));
        insert_limits(&mut author.script, &chance.subject("script"));
        insert_restore(&mut author.script, &chance.subject("script"));
        author.script
    }
}

/// Charges credits for CPUs in one script in four.
pub(super) fn charge_credits(script: &mut Script, chance: &SeededRandom) {
    script.setup.credits = chance.rng_for("credits", 0).u32(0..4) == 0;
}

/// Lets one script in eight limit the pods of the namespace, and change that some actions later. The limits
/// are lifted at the end.
pub(super) fn insert_limits(script: &mut Script, chance: &SeededRandom) {
    let rng = &mut chance.rng_for("limits", 0);
    if rng.u32(0..8) > 0 {
        return;
    }
    for _ in 0..rng.u32(1..=3) {
        let pods = (rng.u32(0..3) > 0).then(|| rng.u32(0..=6));
        let cpu = (rng.u32(0..3) == 0).then(|| [200, 250, 500][rng.usize(0..3)]);
        let step =
            ScriptStep { after: Delay::Millis(rng.u32(0..=MAX_DELAY_MS)), act: UserAction::LimitPods { pods, cpu } };
        script.steps.insert(rng.usize(0..=script.steps.len()), step);
    }
}

/// Lets one script in eight back up the database, and restore it some actions later.
pub(super) fn insert_restore(script: &mut Script, chance: &SeededRandom) {
    let rng = &mut chance.rng_for("restore", 0);
    if rng.u32(0..8) > 0 {
        return;
    }
    // The API server may refuse another spec for an object that exists again.
    let is_put = |step: &ScriptStep| {
        matches!(step.act, UserAction::PutService(_) | UserAction::PutCluster(_) | UserAction::Job(JobAction::Put(_)))
    };
    let puts = script.steps.iter().rposition(is_put).map_or(0, |last| last + 1);
    let restore = rng.usize(puts..=script.steps.len());
    let backup = rng.usize(0..=restore);
    let mut step = |act| ScriptStep { after: Delay::Millis(rng.u32(0..=3_000)), act };
    script.steps.insert(restore, step(UserAction::Restore));
    script.steps.insert(backup, step(UserAction::BackUp));
}

struct JobScriptBuilder {
    script: Script,
}

impl JobScriptBuilder {
    fn push(&mut self, rng: &mut Rng, act: UserAction) {
        let after = match rng.u32(0..5) {
            0 => Delay::UntilQuiescent,
            1 | 2 => Delay::Millis(rng.u32(0..=500)),
            _ => Delay::Millis(rng.u32(0..=MAX_DELAY_MS)),
        };
        self.script.steps.push(ScriptStep { after, act });
    }

    fn desired_state(&self) -> DesiredState {
        DesiredState::after_script(&self.script)
    }
}

/// Returns a random action: most are on a Job that was not deleted.
fn random_action(desired: &DesiredState, rng: &mut Rng, demand: ResourceAmounts) -> UserAction {
    match rng.u32(0..20) {
        0 | 1 => {
            let name = rng.choice(JOBS).unwrap_or(JOBS[0]);
            return UserAction::Job(JobAction::Put(random_job(rng, name)));
        }
        2 | 3 => {
            let nominal = [demand.times(2), demand, less(rng, demand), ResourceAmounts::default()][rng.usize(0..4)];
            return UserAction::SetQuota { queue: any_queue(rng), quotas: vec![Quota::with_nominal(nominal)] };
        }
        4 => {
            let policy = [StopPolicy::None, StopPolicy::Hold, StopPolicy::HoldAndDrain][rng.usize(0..3)];
            let queue = any_queue(rng);
            let is_local = rng.bool();
            return if is_local {
                UserAction::StopLocalQueue { queue, policy }
            } else {
                UserAction::StopQueue { queue, policy }
            };
        }
        5 => {
            if let Some(job) = rng.choice(desired.jobs.keys()) {
                return UserAction::DeleteWorkloads { job: job.clone() };
            }
        }
        _ => {}
    }
    let Some(job) = rng.choice(desired.jobs.values()).cloned() else {
        return UserAction::Job(JobAction::Put(random_job(rng, JOBS[0])));
    };
    UserAction::Job(random_job_action(rng, &job))
}

fn random_job_action(rng: &mut Rng, job: &BatchJob) -> JobAction {
    let name = job.name.clone();
    match rng.u32(0..16) {
        0..5 => {
            // A minimum that is not below the parallelism is invalid, except for a Job that is paused.
            let least = job.min_parallelism.map_or(0, |fewest| fewest + 1);
            let parallelism = Some(random_parallelism(rng)).filter(|number| *number >= least).unwrap_or_default();
            JobAction::Scale { job: name, parallelism }
        }
        5 | 6 => JobAction::Suspend { job: name, suspend: rng.bool() },
        7..10 => {
            let queue = if job.queue.is_none() || rng.u32(0..3) == 0 { Some(any_queue(rng)) } else { None };
            JobAction::SetQueue { job: name, queue, suspend: rng.u32(0..3) > 0 }
        }
        10 | 11 => {
            let propagation = [Propagation::Background, Propagation::Foreground, Propagation::Orphan][rng.usize(0..3)];
            JobAction::Delete { job: name, propagation }
        }
        _ => {
            let state = [PodState::Bound, PodState::Bound, PodState::Ended, PodState::Unbound][rng.usize(0..4)];
            JobAction::DeletePods { job: name, state, count: rng.usize(1..=3) }
        }
    }
}

fn random_job(rng: &mut Rng, name: &str) -> BatchJob {
    let parallelism = random_parallelism(rng);
    let completions = match rng.u32(0..3) {
        0 => Completions::WorkQueue,
        1 => Completions::Count(rng.u32(1..=6)),
        // Only those with as many completions as pods can be scaled.
        _ if rng.bool() => Completions::Indexed(parallelism),
        _ => Completions::Indexed(rng.u32(1..=6)),
    };
    let creation = match rng.u32(0..8) {
        0 => Creation::Unsuspended,
        1 | 2 => Creation::Suspended,
        _ => Creation::Webhook,
    };
    BatchJob {
        name: name.to_owned(),
        queue: (rng.u32(0..10) > 0).then(|| any_queue(rng)),
        priority: (rng.u32(0..3) == 0).then(|| "high".to_owned()),
        completions,
        parallelism,
        min_parallelism: (parallelism > 1 && rng.u32(0..5) == 0).then(|| rng.u32(1..parallelism)),
        backoff_limit: rng.u32(0..=2),
        replaces_failed_only: rng.u32(0..5) == 0,
        size: random_requests(rng, 0),
        runs_for: (rng.u32(0..5) < 3).then(|| rng.u32(100..=20_000)),
        fails_percent: [0, 0, 10, 30][rng.usize(0..4)],
        creation,
    }
}

fn random_parallelism(rng: &mut Rng) -> u32 {
    if rng.u32(0..6) == 0 { 0 } else { rng.u32(1..=MAX_PARALLELISM) }
}

/// Returns one of the queues, most often the first.
pub(super) fn any_queue(rng: &mut Rng) -> String {
    let queue = usize::from(rng.u32(0..4) == 0);
    JOB_QUEUES[queue].to_owned()
}

/// Returns a part of the amounts.
pub(super) fn less(rng: &mut Rng, amounts: ResourceAmounts) -> ResourceAmounts {
    let percent = rng.u32(20..90);
    let part = |amount: u32| amount * percent / 100;
    ResourceAmounts { cpu: part(amounts.cpu), memory: part(amounts.memory), gpu: amounts.gpu }
}

/// Returns a setup of two queues for this demand, sometimes with less quota or in a cohort.
pub(super) fn two_queues(rng: &mut Rng, demand: ResourceAmounts) -> Setup {
    let nominal = [demand.times(2), demand, less(rng, demand)][rng.usize(0..3)];
    let mut setup = Setup::with_one_queue(JOB_QUEUES[0], nominal);
    setup.queues.push(Queue { name: JOB_QUEUES[1].to_owned(), ..setup.queues[0].clone() });
    let cohort = rng.bool().then(|| "all".to_owned());
    for queue in &mut setup.queues {
        queue.cohort.clone_from(&cohort);
        queue.strict_fifo = rng.u32(0..5) == 0;
        queue.within_cluster_queue = rng.bool().then_some(WithinClusterQueue::LowerPriority);
    }
    setup.priorities = vec![Priority { name: "high".into(), value: 100 }];
    setup
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::script::generate::assert_round_trips;

    #[test]
    fn a_script_round_trips_through_yaml() {
        (0..200).for_each(|seed| assert_round_trips(&Script::jobs(&SeededRandom::new(seed))));
    }

    #[test]
    fn every_action_on_jobs_occurs_in_some_script() {
        let mut done = BTreeSet::new();

        for seed in 0..200 {
            for step in Script::jobs(&SeededRandom::new(seed)).steps {
                if let UserAction::Job(act) = step.act {
                    let text = serde_json::to_value(&act).expect("an act is plain data");
                    done.extend(text.as_object().and_then(|act| act.keys().next().cloned()));
                }
            }
        }

        let all = ["delete", "deletePods", "put", "scale", "setQueue", "suspend"];
        assert_eq!(done, all.map(str::to_owned).into());
    }

    #[test]
    fn unblocking_a_script_leaves_quota_for_every_job() {
        for seed in 0..200 {
            let mut script = Script::jobs(&SeededRandom::new(seed));
            let acts = script.unblocking_actions();
            script.steps.extend(acts.into_iter().map(|act| ScriptStep { after: Delay::UntilQuiescent, act }));

            let desired = DesiredState::after_script(&script);

            for (queue, quotas) in &desired.quotas {
                let demand = desired.demand(queue);
                assert!(quotas.iter().all(|quota| quota.nominal.component_min(demand) == demand), "seed {seed}");
            }
        }
    }
}

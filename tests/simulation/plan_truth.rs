//! Checks the predictions of `sluice plan` against simulated upgrades.

use std::collections::BTreeMap;
use std::sync::Mutex;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_api::quantity::Amount;
use sluice_inspect::dry_run::PolicyConfig;
use sluice_inspect::remediation::QuotaChange;
use sluice_inspect::snapshot::Snapshot;
use sluice_inspect::upgrade::{self, PlanVerdict, StrategyOutcome, UpgradePlan};
use sluice_manager::list_objects;

use crate::fault_free;
use crate::rng::SeededRandom;
use crate::script::executor::{Executor, api_resource};
use crate::script::generate::{ScriptOptions, random_pods};
use crate::script::manifests::{ScriptNamespace, ray_version};
use crate::script::step::{Script, Service, UserAction};
use crate::seeds::for_each_seed;
use crate::transport::reliable_client;
use crate::world::SharedWorld;

/// Number of upgrades to plan.
const PLANS: u64 = 200;
/// Number of incremental upgrades to plan.
const INCREMENTAL_PLANS: u64 = 30;
/// Ray minor version of the upgrade.
const UPGRADE_VERSION: u32 = 53;

/// A service among others, and its upgrade.
struct PlannedUpgrade {
    seed: u64,
    script: Script,
    place: ScriptNamespace,
    upgraded: Service,
    /// True if the planned quota must be the minimum. An incremental upgrade to pods of another
    /// size may need one pod less than planned.
    exact: bool,
}

/// Result of an upgrade.
#[derive(Debug, Default)]
struct UpgradeResult {
    /// True if the new cluster is admitted at the end and, in an incremental upgrade, is the only
    /// cluster.
    completed: bool,
    /// Peak usage of the service, by flavor and resource.
    peak_usage: BTreeMap<(String, String), Amount>,
    /// Peak requests of its ungated pods, by resource.
    peak_requests: BTreeMap<String, Amount>,
}

impl PlannedUpgrade {
    fn from_seed(seed: u64) -> Self {
        let chance = SeededRandom::new(seed);
        let mut script = Script::random(&chance, ScriptOptions::QUIESCENT);
        let begins = script.steps.iter().take_while(|step| matches!(step.act, UserAction::PutService(_))).count();
        script.steps.truncate(begins);
        let services = script.steps.iter_mut().filter_map(|step| match &mut step.act {
            UserAction::PutService(service) => Some(service),
            _ => None,
        });
        // A running service stays in its queue, as the admission policies demand.
        let mut services: Vec<&mut Service> = services.collect();
        let planned = services.first().expect("a script begins with a service").name.clone();
        for service in services.iter_mut().filter(|service| service.name == planned) {
            service.queue = Some(script.setup.queues[0].name.clone());
        }
        let service = &mut services[0];
        service.recreate = false;
        let mut to = service.clone();
        to.pods = random_pods(&mut chance.rng_for("planned", 0));
        to.pods.version = UPGRADE_VERSION;
        Self { seed, script, place: ScriptNamespace::new("team"), upgraded: to, exact: true }
    }

    fn incremental(seed: u64) -> Self {
        let rng = &mut SeededRandom::new(seed).rng_for("incremental plan", 0);
        let (script, to) = Script::planned_incremental(rng, UPGRADE_VERSION);
        let before = script.steps.iter().find_map(|step| match &step.act {
            UserAction::PutService(service) => Some(&service.pods),
            _ => None,
        });
        let exact = before.is_some_and(|before| (before.head, &before.groups) == (to.pods.head, &to.pods.groups));
        Self { seed, script, place: ScriptNamespace::new("team"), upgraded: to, exact }
    }

    /// Creates the services and waits until they are quiescent.
    async fn create_services(&self, world: &SharedWorld) -> Result<(), String> {
        let client = reliable_client(world);
        let people = Executor::new(&client, &self.place);
        people.set_up(&self.script.setup).await.map_err(|error| error.to_string())?;
        for step in &self.script.steps {
            people.execute(&step.act).await.map_err(|error| error.to_string())?;
            fault_free::wait_until_quiescent(world).await?;
        }
        Ok(())
    }

    /// Plans the upgrade, then runs it with the quota as it is.
    fn plan_and_run(&self) -> Result<(UpgradePlan, UpgradeResult), String> {
        fault_free::in_world(self.seed, async |world| {
            self.create_services(world).await?;
            let objects = list_objects(&reliable_client(world)).await.map_err(|error| error.to_string())?;
            let upgraded = vec![self.place.service(&self.upgraded)];
            let policy = PolicyConfig::default();
            let plan = upgrade::plan(&Snapshot::new(objects), upgraded, &policy, None, world.time.now())
                .map_err(|error| error.to_string())?;
            Ok((plan, self.sampled(world, self.upgrade(world)).await?))
        })
    }

    /// Runs the upgrade under the first of these quotas, and goes on under each of the others. Returns the result under
    /// each.
    fn run_under(&self, quotas: &[Vec<QuotaChange>]) -> Result<Vec<UpgradeResult>, String> {
        fault_free::in_world(self.seed, async |world| {
            self.create_services(world).await?;
            let (mut results, mut is_upgraded) = (Vec::new(), false);
            for quota in quotas {
                let go_on = async {
                    if !set_quotas(world, quota).await? {
                        return Ok(());
                    }
                    fault_free::wait_until_quiescent(world).await?;
                    if is_upgraded {
                        return Ok(());
                    }
                    is_upgraded = true;
                    self.upgrade(world).await
                };
                results.push(self.sampled(world, go_on).await?);
            }
            Ok(results)
        })
    }

    /// Applies the upgraded service and waits until the system is quiescent.
    async fn upgrade(&self, world: &SharedWorld) -> Result<(), String> {
        let client = reliable_client(world);
        let people = Executor::new(&client, &self.place);
        people.execute(&UserAction::PutService(self.upgraded.clone())).await.map_err(|error| error.to_string())?;
        fault_free::wait_until_quiescent(world).await
    }

    /// Samples the usage while `act` runs. Returns the result at its end.
    async fn sampled(
        &self,
        world: &SharedWorld,
        act: impl Future<Output = Result<(), String>>,
    ) -> Result<UpgradeResult, String> {
        let mut came = UpgradeResult::default();
        tokio::select! {
            () = self.sample_continuously(world, &mut came) => {}
            done = act => done?,
        }
        self.sample(world, &mut came);
        Ok(came)
    }

    /// Samples the usage after every change. Never returns.
    async fn sample_continuously(&self, world: &SharedWorld, came: &mut UpgradeResult) {
        loop {
            let changed = world.next_change();
            self.sample(world, came);
            changed.await;
        }
    }

    fn sample(&self, world: &SharedWorld, came: &mut UpgradeResult) {
        let of_service =
            |object: &&Value| object.pointer("/metadata/ownerReferences/0/name") == Some(&json!(self.upgraded.name));
        world.with(|world| {
            let clusters = || world.api.list("RayCluster").map(AsRef::as_ref).filter(of_service);
            let is_new = |cluster: &&Value| {
                cluster["spec"]["rayVersion"] == ray_version(UPGRADE_VERSION)
                    && cluster["spec"]["suspend"] != json!(true)
            };
            let alone = self.upgraded.incremental.is_none() || clusters().count() == 1;
            came.completed = alone && clusters().any(|cluster| is_new(&cluster));
            raise_peak(
                &mut came.peak_usage,
                newest_usage(world.api.list("Workload").map(AsRef::as_ref).filter(of_service)),
            );
            let names: Vec<&Value> = clusters().map(|cluster| &cluster["metadata"]["name"]).collect();
            let is_its = |pod: &&Value| names.contains(&&pod["metadata"]["labels"]["ray.io/cluster"]);
            raise_peak(
                &mut came.peak_requests,
                ungated_requests(world.api.list("Pod").map(AsRef::as_ref).filter(is_its)),
            );
        });
    }

    /// Returns the deviations from the plan, and the verdict of the plan.
    fn deviations(&self) -> Result<(Vec<String>, PlanVerdict), String> {
        let (plan, unchanged) = self.plan_and_run()?;
        let strategy =
            plan.strategies.iter().find(|strategy| strategy.requested).ok_or("no strategy is the requested one")?;
        let fits = strategy.verdict == PlanVerdict::Fits;
        let mut wrong = Vec::new();
        if self.exact || fits {
            wrong.extend(unexpected_outcome("with the current quota", &unchanged, fits));
        }
        let least = strategy.min_quota.as_ref().ok_or_else(|| format!("the plan has no minimum quota:\n{plan}"))?;
        let insufficient = if self.exact { insufficient_quotas(least) } else { Vec::new() };
        let quotas: Vec<Vec<QuotaChange>> = insufficient.iter().cloned().chain([least.clone()]).collect();
        let mut with_less = self.run_under(&quotas)?;
        let with_least = with_less.pop().ok_or("no upgrade ran")?;
        for (quota, came) in insufficient.iter().zip(&with_less) {
            let what = format!("with {} of {} in {}", quota[0].to, quota[0].resource, quota[0].flavor);
            wrong.extend(unexpected_outcome(&what, came, false));
        }
        wrong.extend(unexpected_outcome("with the minimum quota", &with_least, true));
        let result = if fits { &unchanged } else { &with_least };
        wrong.extend(above_peak(strategy, result));
        wrong.extend(below_peak(strategy, result).filter(|_| self.exact));
        let verdict = strategy.verdict;
        wrong.iter_mut().for_each(|wrong| wrong.push_str(&format!("\n{plan}")));
        Ok((wrong, verdict))
    }
}

/// Returns a quota for each resource in which it is one unit below the minimum. That resource is the first, so that no
/// upgrade fits while the quota changes.
fn insufficient_quotas(least: &[QuotaChange]) -> Vec<Vec<QuotaChange>> {
    let reducible = least.iter().enumerate().filter(|(_, change)| change.to != "0");
    let reduced = reducible.map(|(number, change)| {
        let needed = amount(&change.resource, &change.to);
        let mut quota = least.to_vec();
        quota[number].to = needed.minus(Amount::new(1)).display(&change.resource).to_string();
        quota.swap(0, number);
        quota
    });
    reduced.collect()
}

/// Returns a deviation unless the upgrade completed as expected.
fn unexpected_outcome(what: &str, came: &UpgradeResult, through: bool) -> Option<String> {
    (came.completed != through)
        .then(|| format!("{what}: {}", if through { "the upgrade is pending" } else { "the upgrade completes" }))
}

/// Returns usage and pod requests above the planned peak.
fn above_peak(strategy: &StrategyOutcome, came: &UpgradeResult) -> Vec<String> {
    let planned = |resource: &str, flavor: Option<&str>| {
        let peaks = strategy.peak.iter().filter(|peak| peak.resource == *resource);
        let peaks = peaks.filter(|peak| flavor.is_none_or(|flavor| peak.flavor == flavor));
        peaks.fold(Amount::ZERO, |sum, peak| sum.plus(amount(resource, &peak.amount)))
    };
    let used = came.peak_usage.iter().filter(|((flavor, resource), used)| planned(resource, Some(flavor)) < **used);
    let used = used.map(|(place, used)| format!("{used:?} of {place:?} exceeds the peak"));
    let asked = came.peak_requests.iter().filter(|(resource, asked)| planned(resource, None) < **asked);
    used.chain(asked.map(|(resource, asked)| format!("pods request {asked:?} of {resource}, which exceeds the peak")))
        .collect()
}

/// Returns planned peaks that were not reached.
fn below_peak(strategy: &StrategyOutcome, came: &UpgradeResult) -> impl Iterator<Item = String> {
    let reached = |flavor: &str, resource: &str| {
        came.peak_usage.get(&(flavor.to_owned(), resource.to_owned())).copied().unwrap_or_default()
    };
    let peaks = strategy.peak.iter().map(move |peak| (peak, reached(&peak.flavor, &peak.resource)));
    let below = peaks.filter(|(peak, reached)| *reached < amount(&peak.resource, &peak.amount));
    below.map(|(peak, reached)| {
        format!("only {reached:?} of {} in {} used, the planned peak is {}", peak.resource, peak.flavor, peak.amount)
    })
}

fn raise_peak<K: Ord>(peak: &mut BTreeMap<K, Amount>, now: BTreeMap<K, Amount>) {
    for (place, amount) in now {
        let most = peak.entry(place).or_default();
        *most = amount.max(*most);
    }
}

/// Returns the requests of pods that are neither terminated nor gated, by resource.
fn ungated_requests<'a>(pods: impl Iterator<Item = &'a Value>) -> BTreeMap<String, Amount> {
    let mut asked: BTreeMap<_, Amount> = BTreeMap::new();
    let is_over = |pod: &&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let waits = |pod: &&Value| pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    let containers =
        pods.filter(|pod| !is_over(pod) && !waits(pod)).filter_map(|pod| pod["spec"]["containers"].as_array());
    for (resource, quantity) in containers.flatten().filter_map(|of| of["resources"]["requests"].as_object()).flatten()
    {
        let sum = asked.entry(resource.clone()).or_default();
        *sum = sum.plus(amount(resource, quantity.as_str().unwrap_or_default()));
    }
    asked
}

fn amount(resource: &str, text: &str) -> Amount {
    Amount::from_quantity(resource, &Quantity(text.to_owned())).expect("a quantity")
}

/// Changes the quotas in this order. Returns false if an admission policy denies one, as `sluice-quotas` does for a
/// nominalQuota below the lendingLimit: no upgrade is possible with it.
async fn set_quotas(world: &SharedWorld, quota: &[QuotaChange]) -> Result<bool, String> {
    for change in quota {
        match set_quota(world, change).await {
            Err(kube::Error::Api(status)) if status.message.contains("'sluice-quotas'") => return Ok(false),
            outcome => outcome.map_err(|error| format!("{change:?}: {error}"))?,
        }
    }
    Ok(true)
}

async fn set_quota(world: &SharedWorld, change: &QuotaChange) -> Result<(), kube::Error> {
    let queues = kube::Api::<DynamicObject>::all_with(reliable_client(world), &api_resource("ClusterQueue"));
    let mut groups = queues.get(&change.cluster_queue).await?.data["spec"]["resourceGroups"].take();
    let flavors = groups[0]["flavors"].as_array_mut().into_iter().flatten();
    for flavor in flavors.filter(|flavor| flavor["name"] == change.flavor) {
        let resources = flavor["resources"].as_array_mut().into_iter().flatten();
        for quota in resources.filter(|quota| quota["name"] == change.resource) {
            quota["nominalQuota"] = change.to.clone().into();
        }
    }
    let patch = Patch::Merge(json!({"spec": {"resourceGroups": groups}}));
    queues.patch(&change.cluster_queue, &PatchParams::default(), &patch).await.map(drop)
}

/// Returns the usage of the newest admitted Workload, which has replaced the earlier ones.
fn newest_usage<'a>(workloads: impl Iterator<Item = &'a Value>) -> BTreeMap<(String, String), Amount> {
    let holds = |workload: &&Value| !workload["status"]["admission"].is_null() && !is_finished(workload);
    let newest = workloads.filter(holds).max_by_key(|workload| sequence(workload));
    let assigned = newest.and_then(|newest| newest["status"]["admission"]["podSetAssignments"].as_array());
    let mut used: BTreeMap<_, Amount> = BTreeMap::new();
    for assigned in assigned.into_iter().flatten() {
        for (resource, quantity) in assigned["resourceUsage"].as_object().into_iter().flatten() {
            let flavor = assigned["flavors"][resource].as_str().unwrap_or_default().to_owned();
            let place = used.entry((flavor, resource.clone())).or_default();
            *place = place.plus(amount(resource, quantity.as_str().unwrap_or_default()));
        }
    }
    used
}

fn is_finished(workload: &Value) -> bool {
    let conditions = workload["status"]["conditions"].as_array().into_iter().flatten();
    { conditions }.any(|condition| condition["type"] == "Finished" && condition["status"] == "True")
}

fn sequence(workload: &Value) -> u64 {
    let record = workload.pointer("/metadata/annotations/sluice.dev~1slice").and_then(Value::as_str);
    let record: Value = record.and_then(|record| serde_json::from_str(record).ok()).unwrap_or_default();
    record["sequence"].as_u64().unwrap_or_default()
}

#[test]
fn an_upgrade_goes_as_planned() {
    check_plans(
        env_number("PLANS_FIRST").unwrap_or(0),
        env_number("PLANS").unwrap_or(PLANS),
        PlannedUpgrade::from_seed,
    );
}

#[test]
fn an_incremental_upgrade_goes_as_planned() {
    check_plans(
        env_number("PLANS_FIRST").unwrap_or(0),
        env_number("PLANS").unwrap_or(INCREMENTAL_PLANS),
        PlannedUpgrade::incremental,
    );
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect(name))
}

/// Plans `count` upgrades, from seed `first` on, and compares their results with the plans.
fn check_plans(first: u64, count: u64, upgrade: impl Fn(u64) -> PlannedUpgrade + Sync) {
    let judged = Mutex::new(Vec::new());

    for_each_seed(first..first + count, |seed| {
        let wrong = upgrade(seed).deviations();
        judged.lock().expect("one at a time").push((seed, wrong));
        true
    });

    let judged = judged.into_inner().expect("all are done");
    let of = |wanted: PlanVerdict| {
        judged.iter().filter(|(_, judged)| matches!(judged, Ok((_, found)) if *found == wanted)).count()
    };
    let [fits, pending, never] = [PlanVerdict::Fits, PlanVerdict::Pending, PlanVerdict::Never].map(of);
    println!("{} plans: {fits} fit, {pending} pending, {never} never fit", judged.len());
    let failures = judged.iter().filter_map(|(seed, judged)| match judged {
        Ok((wrong, _)) if wrong.is_empty() => None,
        Ok((wrong, _)) => Some(format!("seed {seed}: {}", wrong.join("\n"))),
        Err(problem) => Some(format!("seed {seed}: {problem}")),
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

use std::time::Duration;

use rstest::rstest;

use super::*;

const SMALL: &str = "
shortScale: 0.5
cohorts: {count: 2, clusterQueues: {count: 3, nominalCpu: 20}}
classes:
- {name: small, count: 10, cpu: 1, every: 100ms, run: random 1s}
- {name: large, count: 4, cpu: 5, after: {class: small, is: created}}
";

fn parse(text: &str) -> Result<Scenario, String> {
    let scenario: Scenario = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let problems = scenario.problems();
    if problems.is_empty() { Ok(scenario) } else { Err(problems.join("\n")) }
}

#[test]
fn scenario_is_read() {
    let scenario = parse(SMALL).expect("a scenario");

    assert_eq!(scenario.classes[0].every, Some(Interval::Fixed(Duration::from_millis(100))));
    assert_eq!(scenario.classes[0].run, Some(Interval::Random(Duration::from_secs(1))));
    assert_eq!(scenario.classes[1].after, Some(After { class: "small".into(), is: Stage::Created }));
}

#[rstest]
#[case::unknown_field("count: 10", "cuont: 10", &["cuont", "count"])]
#[case::unknown_stage("is: created", "is: gone", &["gone", "created", "admitted"])]
#[case::not_an_interval("every: 100ms", "every: soon", &["\"soon\"", "duration like 200ms"])]
#[case::no_count("count: 10", "count: 0", &["classes[0].count: 0", "1 to 1000000"])]
#[case::no_cpu("cpu: 5", "cpu: 0", &["classes[1].cpu: 0", "0.001"])]
#[case::unknown_class("class: small", "class: tiny", &["classes[1].after.class: \"tiny\"", "must be small"])]
#[case::scale_above_one("shortScale: 0.5", "shortScale: 2", &["shortScale: 2", "at most 1"])]
#[case::duplicate_name("name: large", "name: small", &["classes[1].name: \"small\"", "must differ"])]
#[case::priority_of_a_job("cpu: 5", "cpu: 5, kind: Job, priority: 3", &["classes[1].priority: 3", "0 for kind Job"])]
#[case::upgrade_of_nothing("cpu: 5", "cpu: 5, kind: Upgrade", &["classes[1].upgrades", "must name a class"])]
#[case::upgrade_of_workloads("cpu: 5", "cpu: 5, kind: Upgrade, upgrades: small", &["upgrades: \"small\"", "no such class"])]
#[case::upgrade_by_workloads("cpu: 5", "cpu: 5, upgrades: small", &["upgrades: \"small\"", "absent for kind Workload"])]
#[case::end_out_of_reach("shortScale", "stopAfterFinished: 61\nshortScale", &["stopAfterFinished: 61", "1 to 60"])]
fn error_names_field_value_and_what_is_allowed(#[case] from: &str, #[case] to: &str, #[case] words: &[&str]) {
    let error = parse(&SMALL.replacen(from, to, 1)).expect_err("it is invalid");

    for word in words {
        assert!(error.contains(word), "{word:?} is missing: {error}");
    }
}

#[test]
fn scale_reduces_cohorts_first_and_then_objects() {
    let scenario = parse(SMALL).expect("a scenario");

    let half = scenario.scaled(0.5);
    assert_eq!((half.cohorts.count, half.classes[0].count), (1, 10));

    let tenth = scenario.scaled(0.1);
    assert_eq!((tenth.cohorts.count, tenth.classes[0].count, tenth.classes[1].count), (1, 2, 1));
}

#[test]
fn request_that_scales_keeps_the_number_of_objects() {
    let mut scenario = parse(SMALL).expect("a scenario");
    scenario.classes[1].scale_cpu = true;
    scenario.cohorts.cluster_queues.scale_quota = true;

    let tenth = scenario.scaled(0.1);

    assert_eq!((tenth.classes[1].count, tenth.classes[1].cpu), (4, 1.0));
    assert_eq!(tenth.cohorts.cluster_queues.nominal_cpu, 4.0);
}

#[test]
fn random_interval_has_its_mean() {
    let (interval, mut random) = (Interval::Random(Duration::from_millis(100)), fastrand::Rng::with_seed(1));

    let total: Duration = (0..10_000).map(|_| interval.next(&mut random)).sum();

    let mean = total / 10_000;
    assert!((Duration::from_millis(97)..Duration::from_millis(103)).contains(&mean), "{mean:?}");
}

#[test]
fn scenarios_of_the_suite_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(folder).expect("the scenarios").map(|file| file.expect("a file").path());
    let read: Vec<_> = files.map(|path| Scenario::read(&path).unwrap_or_else(|error| panic!("{error}"))).collect();

    assert_eq!(read.len(), 8);
    for scenario in read {
        assert_eq!(scenario.scaled(scenario.short_scale).problems(), [""; 0]);
    }
}

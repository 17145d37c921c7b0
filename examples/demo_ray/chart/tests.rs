use rstest::rstest;

use super::*;
use crate::series::observed::UpgradeState;
use crate::series::requests::{Latency, RequestTotals, RequestsInSecond};

#[rstest]
#[case::of_the_queue(
    "upgrade to b is pending in LocalQueue user-queue (a keeps serving): couldn't assign flavors to pod set head: insufficient quota for \
     cpu in flavor default-flavor, previously considered podsets requests (3) + current podset request (1) > maximum capacity (3) (fits only once nominalQuota is 5); more",
    "fits only once nominalQuota is 5"
)]
#[case::without_a_number("a waits: insufficient quota for cpu in flavor f", "insufficient quota for cpu in flavor f")]
#[case::of_another_kind("a waits: no flavor", "a waits: no flavor")]
fn short_extracts_the_shortfall(#[case] why: &str, #[case] expected: &str) {
    assert_eq!(shortfall_text(why), expected);
}

fn series() -> Series {
    let second = |version: &str| RequestsInSecond {
        answered: [(version.to_owned(), 20)].into(),
        failed: 0,
        latency: Some(Latency { p50: 10.0, p99: 90.0 }),
    };
    let standing = |at: f64, version: &str| UpgradeState {
        at,
        traffic: [(version.to_owned(), 100.0)].into(),
        quota: 3.0,
        ..UpgradeState::default()
    };
    let event = |at: f64, what: UpgradeEventKind| UpgradeEvent { at, what };
    Series {
        seconds: vec![second("1"), second("1"), second("1"), second("2")],
        standings: vec![standing(0.0, "1"), standing(3.0, "2")],
        events: vec![
            event(1.0, UpgradeEventKind::Applied("2".to_owned())),
            event(1.0, UpgradeEventKind::Waits("insufficient quota for cpu (fits once nominalQuota > 1)".to_owned())),
            event(2.0, UpgradeEventKind::Raised(3.0)),
            event(2.0, UpgradeEventKind::Admitted),
            event(3.0, UpgradeEventKind::Promoted("2".to_owned())),
        ],
        total: RequestTotals { requests: 80, failed: 0, latency: None },
    }
}

#[test]
fn picture_labels_the_events() {
    let svg = svg(&series());
    for words in [
        "80 requests, 0 failed",
        "version 1",
        "version 2",
        "upgrade applied",
        "waits for quota: fits once nominalQuota &gt; 1",
        "quota raised",
        "promoted",
        "p50",
        "p99",
        "quota 3",
    ] {
        assert!(svg.contains(words), "{words} is not in {svg}");
    }
    assert!(!svg.contains("old cluster deleted"), "no such event occurred");
}

#[test]
fn empty_series_yields_a_picture() {
    let nothing = Series { seconds: vec![], standings: vec![], events: vec![], total: RequestTotals::default() };
    assert!(svg(&nothing).starts_with("<svg"));
}

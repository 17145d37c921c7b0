//! Completion indexes of Indexed Jobs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

/// Annotation and label of a pod with its completion index.
pub(super) const INDEX_ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";

/// Returns the completion index of a pod; `None` if it has none below `completions`.
pub(super) fn index_of(pod: &Pod, completions: i32) -> Option<i32> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(INDEX_ANNOTATION)?.parse().ok().filter(|index| (0..completions).contains(index))
}

/// Parses `status.completedIndexes`, without the indexes that are out of range (kubernetes 1.36
/// `pkg/controller/job/indexed_job_utils.go`, `parseIndexesFromString`).
pub(super) fn parse(text: &str, completions: i32) -> BTreeSet<i32> {
    let interval = |interval: &str| {
        let (first, last) = interval.split_once('-').unwrap_or((interval, interval));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    };
    text.split(',').filter_map(interval).flatten().filter(|index| *index < completions).collect()
}

/// Formats indexes as `status.completedIndexes`: like `1,3-5` (`orderedIntervals.String`).
pub(super) fn format(indexes: &BTreeSet<i32>) -> String {
    let mut intervals: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match intervals.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => intervals.push((*index, *index)),
        }
    }
    let text = intervals.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none("", &[])]
    #[case::single("3", &[3])]
    #[case::pair("1,2", &[1, 2])]
    #[case::intervals("0,2-4,6", &[0, 2, 3, 4, 6])]
    fn indexes_round_trip(#[case] text: &str, #[case] indexes: &[i32]) {
        let indexes: BTreeSet<i32> = indexes.iter().copied().collect();

        assert_eq!(parse(text, 9), indexes);
        assert_eq!(format(&indexes), text);
    }

    #[test]
    fn indexes_out_of_range_are_dropped() {
        assert_eq!(parse("0-4", 3), [0, 1, 2].into());
    }
}

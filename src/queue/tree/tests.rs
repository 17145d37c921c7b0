//! Quota arithmetic of the tree, on examples that can be verified by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{CohortTree, FlavorResourceId, NodeId, NodeSpec, UsageView};
use crate::cluster_queue_config::QuotaLimits;
use crate::tree::FlavorResource;
use sluice_api::quantity::Amount;

fn gpu() -> FlavorResource {
    FlavorResource { flavor: "a100".into(), resource: "gpu".into() }
}

fn spec(parent: Option<&str>, nominal: i64, borrowing: Option<i64>, lending: Option<i64>) -> NodeSpec {
    let limits = QuotaLimits {
        nominal: Amount::new(nominal),
        borrowing_limit: borrowing.map(Amount::new),
        lending_limit: lending.map(Amount::new),
    };
    NodeSpec { parent: parent.map(str::to_owned), limits: BTreeMap::from([(gpu(), limits)]), ..NodeSpec::default() }
}

/// ClusterQueues `a` (10, lends 4) and `b` (5, borrows 2) in cohort `left` (3), which is in `top`
/// (20, without limits).
fn example() -> (CohortTree, FlavorResourceId, NodeId, NodeId) {
    let mut tree = CohortTree::default();
    let fr = tree.flavor_resource_id(&gpu());
    let (a, b) = (tree.cluster_queue_id("a"), tree.cluster_queue_id("b"));
    let (left, top) = (tree.cohort_id("left"), tree.cohort_id("top"));
    tree.set_spec(a, Some(spec(Some("left"), 10, None, Some(4))));
    tree.set_spec(b, Some(spec(Some("left"), 5, Some(2), None)));
    tree.set_spec(left, Some(spec(Some("top"), 3, None, None)));
    tree.set_spec(top, Some(spec(None, 20, None, None)));
    tree.rebuild();
    (tree, fr, a, b)
}

#[test]
fn lending_limit_bounds_quota_of_the_cohort() {
    let (tree, fr, a, b) = example();
    let left = tree.parent(a).expect("a parent");
    let top = tree.root(a);
    assert_eq!((tree.subtree_quota(left, fr), tree.subtree_quota(top, fr)), (12, 32));
    assert_eq!((tree.potential_available(a, fr), tree.potential_available(b, fr)), (38, 7));
    assert_eq!(tree.path(b), "/top/left/b");
}

#[test]
fn usage_counts_at_the_parent_only_beyond_local_quota() {
    let (mut tree, fr, a, b) = example();
    let left = tree.parent(a).expect("a parent");
    tree.add_usage(a, fr, 6, UsageView::Actual);
    assert_eq!(tree.usage(left, fr, UsageView::Actual), 0);
    tree.add_usage(a, fr, 5, UsageView::Actual);
    assert_eq!(tree.usage(left, fr, UsageView::Actual), 5);
    assert_eq!(tree.available(a, fr, UsageView::Actual, 0), 27);
    assert_eq!(tree.available(a, fr, UsageView::Actual, 11), 38);
    assert_eq!(tree.available(b, fr, UsageView::Actual, 0), 7);
    assert_eq!(tree.available(a, fr, UsageView::Planned, 0), 38);
}

#[test]
fn lowest_subtree_that_fits_is_found() {
    let (mut tree, fr, a, b) = example();
    let heights = |tree: &CohortTree, node, amount| {
        let fit = tree.lowest_fit(node, fr, amount, UsageView::Planned, 0);
        (fit.height, fit.reclaimable)
    };
    assert_eq!(heights(&tree, a, 10), (0, true));
    assert_eq!(heights(&tree, a, 18), (1, true));
    assert_eq!(heights(&tree, a, 19), (2, false));
    tree.add_usage(b, fr, 7, UsageView::Planned);
    assert_eq!(heights(&tree, a, 11), (1, true));
    assert_eq!(heights(&tree, a, 12), (2, false));
}

#[test]
fn exceeded_limit_is_found() {
    let (mut tree, fr, a, b) = example();
    tree.add_usage(a, fr, 11, UsageView::Planned);
    let name = |node| tree.name(node).to_owned();
    let (node, limited) = tree.binding_limit(b, fr, 8, UsageView::Planned, 0);
    assert_eq!((name(node), limited), ("b".to_owned(), true));
    let (node, limited) = tree.binding_limit(a, fr, 30, UsageView::Planned, 0);
    assert_eq!((name(node), limited), ("top".to_owned(), false));
}

#[test]
fn cohort_cycle_is_reported_by_name_and_cut() {
    let mut tree = CohortTree::default();
    let (queue, one, two) = (tree.cluster_queue_id("q"), tree.cohort_id("one"), tree.cohort_id("two"));
    tree.set_spec(queue, Some(spec(Some("one"), 1, None, None)));
    tree.set_spec(one, Some(spec(Some("two"), 1, None, None)));
    tree.set_spec(two, Some(spec(Some("one"), 1, None, None)));
    tree.rebuild();
    assert_eq!(tree.cohort_cycle(queue).as_deref(), Some("one -> two -> one"));
    tree.set_spec(two, None);
    tree.rebuild();
    assert_eq!(tree.cohort_cycle(queue), None);
    assert_eq!(tree.path(queue), "/two/one/q");
}

/// Parent, nominal quota, borrowing limit and lending limit of a node.
type NodeParameters = (Option<u8>, i64, Option<i64>, Option<i64>);

#[derive(Debug, Clone)]
struct TreeSpec {
    nodes: Vec<NodeParameters>,
    usage: Vec<(u8, i64)>,
}

fn trees() -> impl Strategy<Value = TreeSpec> {
    let limit = || proptest::option::of(0..6_i64);
    let nodes = prop::collection::vec((proptest::option::of(0..4_u8), 0..10_i64, limit(), limit()), 4..9);
    (nodes, prop::collection::vec((0..5_u8, 1..9_i64), 0..20)).prop_map(|(nodes, usage)| TreeSpec { nodes, usage })
}

/// The first four nodes are Cohorts below earlier ones only; the others are ClusterQueues.
fn build(generated: &TreeSpec) -> (CohortTree, FlavorResourceId, Vec<NodeId>) {
    let mut tree = CohortTree::default();
    let fr = tree.flavor_resource_id(&gpu());
    let mut queues = Vec::new();
    for (index, (parent, nominal, borrowing, lending)) in generated.nodes.iter().enumerate() {
        let parent = parent.map(usize::from).filter(|parent| *parent < index).map(|parent| format!("c{parent}"));
        let limits = if parent.is_some() { (*borrowing, *lending) } else { (None, None) };
        let node_spec = spec(parent.as_deref(), *nominal, limits.0, limits.1);
        let id =
            if index < 4 { tree.cohort_id(&format!("c{index}")) } else { tree.cluster_queue_id(&format!("q{index}")) };
        tree.set_spec(id, Some(node_spec));
        queues.extend((index >= 4).then_some(id));
    }
    tree.rebuild();
    (tree, fr, queues)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Usage that is added and removed in any order leaves no residue, and a rebuilt tree has equal
    /// sums.
    #[test]
    fn removed_usage_leaves_no_residue(generated in trees(), order in any::<u64>()) {
        let (mut tree, fr, queues) = build(&generated);
        if queues.is_empty() {
            return Ok(());
        }
        let mut entries: Vec<(NodeId, i64)> =
            generated.usage.iter().map(|(queue, amount)| (queues[usize::from(*queue) % queues.len()], *amount)).collect();
        for (queue, amount) in &entries {
            tree.add_usage(*queue, fr, (*amount).into(), UsageView::Actual);
        }
        let mut rebuilt = tree.clone();
        rebuilt.stale = true;
        rebuilt.rebuild();
        for node in tree.ids() {
            prop_assert_eq!(tree.usage(node, fr, UsageView::Actual), rebuilt.usage(node, fr, UsageView::Actual));
            prop_assert_eq!(tree.available(node, fr, UsageView::Actual, 0), rebuilt.available(node, fr, UsageView::Actual, 0));
        }
        let turn = usize::try_from(order % 20).unwrap_or(0) % entries.len().max(1);
        entries.rotate_left(turn);
        for (queue, amount) in &entries {
            tree.add_usage(*queue, fr, -i128::from(*amount), UsageView::Actual);
        }
        for node in tree.ids() {
            prop_assert_eq!(tree.usage(node, fr, UsageView::Actual), 0);
        }
    }

    /// Subtracting usage in a query equals removing it first.
    #[test]
    fn subtracting_usage_in_a_query_equals_removing_it(generated in trees()) {
        let (mut tree, fr, queues) = build(&generated);
        if queues.is_empty() {
            return Ok(());
        }
        for (queue, amount) in &generated.usage {
            tree.add_usage(queues[usize::from(*queue) % queues.len()], fr, (*amount).into(), UsageView::Planned);
        }
        for queue in queues {
            let used = tree.usage(queue, fr, UsageView::Planned);
            let less = used / 2;
            let without = tree.available(queue, fr, UsageView::Planned, less);
            let fit = tree.lowest_fit(queue, fr, 3, UsageView::Planned, less);
            tree.add_usage(queue, fr, -less, UsageView::Planned);
            prop_assert_eq!(without, tree.available(queue, fr, UsageView::Planned, 0));
            prop_assert_eq!(fit, tree.lowest_fit(queue, fr, 3, UsageView::Planned, 0));
            tree.add_usage(queue, fr, less, UsageView::Planned);
        }
    }

    /// More nominal quota of a ClusterQueue makes that much more available to it, whatever the
    /// limits above it.
    #[test]
    fn more_nominal_quota_makes_that_much_more_available(generated in trees(), more in 1..5_i64) {
        let (mut tree, fr, queues) = build(&generated);
        if queues.is_empty() {
            return Ok(());
        }
        for (queue, amount) in &generated.usage {
            tree.add_usage(queues[usize::from(*queue) % queues.len()], fr, (*amount).into(), UsageView::Actual);
        }
        for queue in queues {
            let before = tree.available(queue, fr, UsageView::Actual, 0);
            let mut raised = tree.clone();
            let mut spec = raised.node(queue).spec.clone().expect("a spec");
            let limits = spec.limits.get_mut(&gpu()).expect("limits");
            limits.nominal = limits.nominal.plus(Amount::new(more));
            raised.set_spec(queue, Some(spec));
            raised.rebuild();
            prop_assert_eq!(raised.available(queue, fr, UsageView::Actual, 0), before + i128::from(more));
        }
    }
}

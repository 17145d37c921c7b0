//! Nodes and their free capacity.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_api::quantity::Exact;

use super::object_view::{items, map_entries, text};

/// Amounts by resource: CPU in milli-CPU, memory in bytes, devices and pods as counts.
pub(super) type Amounts = BTreeMap<String, i64>;

/// Configuration of a node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Taints as key and value; the effect is NoSchedule.
    pub taints: BTreeMap<String, String>,
    /// Allocatable resources, as quantities.
    pub allocatable: BTreeMap<String, String>,
}

impl Node {
    /// Creates a node like those of the test environment (testenv/internal/supervisor/nodes.go).
    pub fn numbered(number: usize) -> Self {
        let name = format!("node-{number}");
        let owned = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
            entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        Self {
            labels: owned(&[
                ("kubernetes.io/hostname", &name),
                ("kubernetes.io/os", "linux"),
                ("kubernetes.io/arch", "amd64"),
            ]),
            taints: BTreeMap::new(),
            allocatable: owned(&[("cpu", "64"), ("memory", "256Gi"), ("nvidia.com/gpu", "8"), ("pods", "500")]),
            name,
        }
    }

    /// Adds a label.
    #[must_use]
    pub fn with_label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds a NoSchedule taint.
    #[must_use]
    pub fn with_taint(mut self, key: &str, value: &str) -> Self {
        self.taints.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets the allocatable quantity of a resource.
    #[must_use]
    pub fn with_allocatable(mut self, resource: &str, quantity: &str) -> Self {
        self.allocatable.insert(resource.to_owned(), quantity.to_owned());
        self
    }
}

/// Nodes of a cluster.
#[derive(Debug, Clone)]
pub struct Nodes(pub Vec<Node>);

impl Nodes {
    /// Creates `count` nodes like those of the test environment.
    pub fn uniform(count: usize) -> Self {
        Self((0..count).map(Node::numbered).collect())
    }
}

/// Nodes with their free capacity.
#[derive(Debug)]
pub(super) struct NodeStates {
    nodes: Vec<NodeState>,
}

#[derive(Debug)]
struct NodeState {
    node: Node,
    free: Amounts,
}

impl NodeStates {
    pub(super) fn new(nodes: Nodes) -> Self {
        let room = |node: Node| {
            let amount =
                |(resource, quantity): (&String, &String)| (resource.clone(), parse_amount(resource, quantity));
            NodeState { free: node.allocatable.iter().map(amount).collect(), node }
        };
        Self { nodes: nodes.0.into_iter().map(room).collect() }
    }

    /// Returns the nodes as ready Node objects.
    pub(super) fn objects(&self) -> impl Iterator<Item = Value> {
        self.nodes.iter().enumerate().map(|(number, room)| {
            let node = &room.node;
            let taint = |(key, value): (&String, &String)| json!({"key": key, "value": value, "effect": "NoSchedule"});
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node.name, "labels": node.labels},
                "spec": {"taints": node.taints.iter().map(taint).collect::<Vec<Value>>()},
                "status": {
                    "capacity": node.allocatable, "allocatable": node.allocatable,
                    "addresses": [
                        {"type": "InternalIP", "address": host_ip(number)},
                        {"type": "Hostname", "address": node.name},
                    ],
                    "conditions": [
                        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated node"},
                    ],
                },
            })
        })
    }

    /// Returns the index of a node; `None` if the name is unknown.
    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|room| room.node.name == name)
    }

    pub(super) fn name(&self, number: usize) -> &str {
        &self.nodes[number].node.name
    }

    /// Returns the index of the fitting node with the most free CPU.
    ///
    /// # Errors
    /// Returns the scheduler's message if the pod fits on no node.
    pub(super) fn find_node(&self, pod: &Value, requests: &Amounts) -> Result<usize, String> {
        let mut best: Option<(usize, i64)> = None;
        let mut obstacles: BTreeMap<String, usize> = BTreeMap::new();
        for (number, room) in self.nodes.iter().enumerate() {
            match room.unschedulable_reason(pod, requests) {
                Some(obstacle) => *obstacles.entry(obstacle).or_default() += 1,
                None => {
                    let free = room.free.get("cpu").copied().unwrap_or(0);
                    if best.is_none_or(|(_, most)| free > most) {
                        best = Some((number, free));
                    }
                }
            }
        }
        best.map(|(number, _)| number).ok_or_else(|| {
            let obstacles: Vec<String> = obstacles.iter().map(|(what, nodes)| format!("{nodes} {what}")).collect();
            format!("0/{} nodes are available: {}.", self.nodes.len(), obstacles.join(", "))
        })
    }

    pub(super) fn reserve(&mut self, number: usize, requests: &Amounts) {
        for (resource, amount) in requests {
            *self.nodes[number].free.entry(resource.clone()).or_default() -= amount;
        }
    }

    pub(super) fn release(&mut self, number: usize, requests: &Amounts) {
        for (resource, amount) in requests {
            *self.nodes[number].free.entry(resource.clone()).or_default() += amount;
        }
    }
}

impl NodeState {
    /// Returns why a pod does not fit on this node, in the words of kube-scheduler; `None` if it
    /// fits.
    fn unschedulable_reason(&self, pod: &Value, requests: &Amounts) -> Option<String> {
        let selected = |(key, value): (&str, &Value)| self.node.labels.get(key).map(String::as_str) == value.as_str();
        if !map_entries(pod, "/spec/nodeSelector").all(selected) {
            return Some("node(s) didn't match Pod's node affinity/selector".to_owned());
        }
        if let Some((key, value)) = self.node.taints.iter().find(|taint| !tolerates(pod, taint)) {
            return Some(format!("node(s) had untolerated taint {{{key}: {value}}}"));
        }
        let lacks = |(resource, amount): &(&String, &i64)| **amount > self.free.get(*resource).copied().unwrap_or(0);
        requests.iter().find(lacks).map(|(resource, _)| match resource.as_str() {
            "pods" => "Too many pods".to_owned(),
            _ => format!("Insufficient {resource}"),
        })
    }
}

fn tolerates(pod: &Value, (key, value): &(&String, &String)) -> bool {
    items(pod, "/spec/tolerations").any(|toleration| {
        let for_key =
            matches!(text(toleration, "/key"), tolerated if tolerated == key.as_str() || tolerated.is_empty());
        let for_value = text(toleration, "/operator") == "Exists" || text(toleration, "/value") == value.as_str();
        let for_effect = matches!(text(toleration, "/effect"), "" | "NoSchedule");
        for_key && for_value && for_effect
    })
}

/// Returns the total requests of a pod: the maximum of containers plus sidecars and of each init
/// container plus the sidecars started before it; plus overhead.
pub(super) fn pod_requests(pod: &Value) -> Amounts {
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in items(pod, "/spec/initContainers") {
        if text(container, "/restartPolicy") == "Always" {
            add(&mut sidecars, &container_requests(container));
        } else {
            let mut with_started_sidecars = sidecars.clone();
            add(&mut with_started_sidecars, &container_requests(container));
            raise_to(&mut peak, &with_started_sidecars);
        }
    }
    let mut total = sidecars;
    for container in items(pod, "/spec/containers") {
        add(&mut total, &container_requests(container));
    }
    raise_to(&mut total, &peak);
    add(&mut total, &parse_amounts(map_entries(pod, "/spec/overhead")));
    add(&mut total, &Amounts::from([("pods".to_owned(), 1)]));
    total
}

/// Returns the requests of a container; missing ones default to its limits, as in the API server.
fn container_requests(container: &Value) -> Amounts {
    let mut requested = parse_amounts(map_entries(container, "/resources/limits"));
    requested.extend(parse_amounts(map_entries(container, "/resources/requests")));
    requested
}

fn parse_amounts<'a>(quantities: impl Iterator<Item = (&'a str, &'a Value)>) -> Amounts {
    let quantity = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    quantities.map(|(resource, value)| (resource.to_owned(), parse_amount(resource, &quantity(value)))).collect()
}

/// Parses a quantity. A malformed one becomes larger than any node, so that tests notice it.
fn parse_amount(resource: &str, quantity: &str) -> i64 {
    Exact::parse(quantity).map_or(i64::MAX / 1024, |exact| exact.to_amount(resource).get())
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        *total.entry(resource.clone()).or_default() += amount;
    }
}

fn raise_to(total: &mut Amounts, least: &Amounts) {
    for (resource, amount) in least {
        let current = total.entry(resource.clone()).or_default();
        *current = (*current).max(*amount);
    }
}

/// Returns the IP of the node with an index, in 198.18.0.0/16 (reserved for benchmarks, RFC 2544).
pub(super) fn host_ip(number: usize) -> String {
    format!("198.18.{}.{}", 1 + number / 250, 1 + number % 250)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn pod(spec: Value) -> Value {
        json!({"spec": spec})
    }

    fn place(rooms: &NodeStates, pod: &Value) -> Result<usize, String> {
        rooms.find_node(pod, &pod_requests(pod))
    }

    #[test]
    fn pod_requests_are_containers_and_sidecars_or_the_largest_init_container() {
        let pod = pod(json!({
            "initContainers": [
                {"resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
                {"resources": {"requests": {"cpu": "1"}}},
            ],
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}, "requests": {"cpu": "1"}}}],
            "overhead": {"cpu": "100m"},
        }));

        let requested = pod_requests(&pod);

        let amount = |resource: &str| requested.get(resource).copied();
        assert_eq!((amount("cpu"), amount("memory")), (Some(3_100), Some(1 << 30)));
        assert_eq!((amount("nvidia.com/gpu"), amount("pods")), (Some(2), Some(1)));
    }

    #[test]
    fn pod_is_placed_on_the_node_with_most_free_cpu() {
        let mut rooms = NodeStates::new(Nodes::uniform(2));
        let pod = pod(json!({"containers": [{"resources": {"requests": {"cpu": "40"}}}]}));

        for expected in [0, 1] {
            let number = place(&rooms, &pod).expect("a node");
            assert_eq!(number, expected);
            rooms.reserve(number, &pod_requests(&pod));
        }

        assert_eq!(place(&rooms, &pod), Err("0/2 nodes are available: 2 Insufficient cpu.".to_owned()));
        rooms.release(1, &pod_requests(&pod));
        assert_eq!(place(&rooms, &pod), Ok(1));
    }

    #[test]
    fn pod_is_placed_where_its_resources_are_free() {
        let nodes = vec![
            Node::numbered(0).with_allocatable("nvidia.com/gpu", "0"),
            Node::numbered(1).with_allocatable("cpu", "8"),
        ];
        let pod = pod(json!({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}));

        assert_eq!(place(&NodeStates::new(Nodes(nodes)), &pod), Ok(1));
    }

    #[rstest]
    #[case::selected(json!({"nodeSelector": {"pool": "a"}}), Ok(0))]
    #[case::selected_and_tolerated(
        json!({"nodeSelector": {"pool": "b"}, "tolerations": [{"key": "spot", "value": "yes", "effect": "NoSchedule"}]}), Ok(1))]
    #[case::any_tolerated(json!({"nodeSelector": {"pool": "b"}, "tolerations": [{"operator": "Exists"}]}), Ok(1))]
    #[case::not_tolerated(json!({"nodeSelector": {"pool": "b"}}), Err(
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, \
         1 node(s) had untolerated taint {spot: yes}."))]
    fn pod_is_placed_by_node_selector_and_tolerations(#[case] spec: Value, #[case] placed: Result<usize, &str>) {
        let nodes = vec![
            Node::numbered(0).with_label("pool", "a"),
            Node::numbered(1).with_label("pool", "b").with_taint("spot", "yes"),
        ];

        let found = place(&NodeStates::new(Nodes(nodes)), &pod(spec));

        assert_eq!(found, placed.map_err(str::to_owned));
    }
}

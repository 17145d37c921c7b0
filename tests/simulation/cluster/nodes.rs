//! Nodes, and the room on them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_api::quantity::Exact;

use super::read::{fields, items, text};

/// Amounts by resource: milli-CPU, bytes, devices, pods.
pub(super) type Amounts = BTreeMap<String, i64>;

/// A node as it comes up.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Keys and values of its taints; their effect is NoSchedule.
    pub taints: BTreeMap<String, String>,
    /// What pods can have of it, as quantities.
    pub allocatable: BTreeMap<String, String>,
}

impl Node {
    /// A node like those of the test environment (testenv/internal/supervisor/nodes.go).
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

    /// The same node with this label.
    #[must_use]
    pub fn labelled(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The same node with a taint that keeps pods away which don't tolerate it.
    #[must_use]
    pub fn tainted(mut self, key: &str, value: &str) -> Self {
        self.taints.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The same node with that much of a resource.
    #[must_use]
    pub fn with(mut self, resource: &str, quantity: &str) -> Self {
        self.allocatable.insert(resource.to_owned(), quantity.to_owned());
        self
    }
}

/// The nodes of a cluster.
#[derive(Debug, Clone)]
pub struct Nodes(pub Vec<Node>);

impl Nodes {
    /// So many nodes like those of the test environment.
    pub fn alike(count: usize) -> Self {
        Self((0..count).map(Node::numbered).collect())
    }
}

/// The nodes, and what of them is free.
#[derive(Debug)]
pub(super) struct Rooms {
    rooms: Vec<Room>,
}

#[derive(Debug)]
struct Room {
    node: Node,
    free: Amounts,
}

impl Rooms {
    pub(super) fn new(nodes: Nodes) -> Self {
        let room = |node: Node| {
            let amount = |(resource, quantity): (&String, &String)| (resource.clone(), amount(resource, quantity));
            Room { free: node.allocatable.iter().map(amount).collect(), node }
        };
        Self { rooms: nodes.0.into_iter().map(room).collect() }
    }

    /// The nodes as objects, ready.
    pub(super) fn objects(&self) -> impl Iterator<Item = Value> {
        self.rooms.iter().enumerate().map(|(number, room)| {
            let node = &room.node;
            let taint = |(key, value): (&String, &String)| json!({"key": key, "value": value, "effect": "NoSchedule"});
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node.name, "labels": node.labels},
                "spec": {"taints": node.taints.iter().map(taint).collect::<Vec<Value>>()},
                "status": {
                    "capacity": node.allocatable, "allocatable": node.allocatable,
                    "addresses": [
                        {"type": "InternalIP", "address": host_address(number)},
                        {"type": "Hostname", "address": node.name},
                    ],
                    "conditions": [
                        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated node"},
                    ],
                },
            })
        })
    }

    /// The number of the node with this name.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.rooms.iter().position(|room| room.node.name == name)
    }

    pub(super) fn name(&self, number: usize) -> &str {
        &self.rooms[number].node.name
    }

    /// The node that a pod fits on and that has most CPU free; otherwise what the scheduler says of it.
    pub(super) fn place(&self, pod: &Value, requests: &Amounts) -> Result<usize, String> {
        let mut best: Option<(usize, i64)> = None;
        let mut obstacles: BTreeMap<String, usize> = BTreeMap::new();
        for (number, room) in self.rooms.iter().enumerate() {
            match room.obstacle(pod, requests) {
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
            format!("0/{} nodes are available: {}.", self.rooms.len(), obstacles.join(", "))
        })
    }

    pub(super) fn take(&mut self, number: usize, requests: &Amounts) {
        for (resource, amount) in requests {
            *self.rooms[number].free.entry(resource.clone()).or_default() -= amount;
        }
    }

    pub(super) fn give_back(&mut self, number: usize, requests: &Amounts) {
        for (resource, amount) in requests {
            *self.rooms[number].free.entry(resource.clone()).or_default() += amount;
        }
    }
}

impl Room {
    /// Why a pod can't be on this node, in the scheduler's words.
    fn obstacle(&self, pod: &Value, requests: &Amounts) -> Option<String> {
        let selected = |(key, value): (&str, &Value)| self.node.labels.get(key).map(String::as_str) == value.as_str();
        if !fields(pod, "/spec/nodeSelector").all(selected) {
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
        let for_key = matches!(text(toleration, "/key"), asked if asked == key.as_str() || asked.is_empty());
        let for_value = text(toleration, "/operator") == "Exists" || text(toleration, "/value") == value.as_str();
        let for_effect = matches!(text(toleration, "/effect"), "" | "NoSchedule");
        for_key && for_value && for_effect
    })
}

/// What a pod asks of a node: its containers with the sidecars, or its most demanding init container with the sidecars that
/// run by then, whichever is more; and its overhead.
pub(super) fn requests(pod: &Value) -> Amounts {
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in items(pod, "/spec/initContainers") {
        if text(container, "/restartPolicy") == "Always" {
            add(&mut sidecars, &of_container(container));
        } else {
            let mut by_then = sidecars.clone();
            add(&mut by_then, &of_container(container));
            raise(&mut peak, &by_then);
        }
    }
    let mut total = sidecars;
    for container in items(pod, "/spec/containers") {
        add(&mut total, &of_container(container));
    }
    raise(&mut total, &peak);
    add(&mut total, &amounts(fields(pod, "/spec/overhead")));
    add(&mut total, &Amounts::from([("pods".to_owned(), 1)]));
    total
}

/// What a container requests; what it doesn't say follows from its limits, as the API server would fill in.
fn of_container(container: &Value) -> Amounts {
    let mut asked = amounts(fields(container, "/resources/limits"));
    asked.extend(amounts(fields(container, "/resources/requests")));
    asked
}

fn amounts<'a>(quantities: impl Iterator<Item = (&'a str, &'a Value)>) -> Amounts {
    let quantity = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    quantities.map(|(resource, value)| (resource.to_owned(), amount(resource, &quantity(value)))).collect()
}

/// What can't be read counts as more than any node has: it must not go unnoticed.
fn amount(resource: &str, quantity: &str) -> i64 {
    Exact::parse(quantity).map_or(i64::MAX / 1024, |exact| exact.to_amount(resource).get())
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        *total.entry(resource.clone()).or_default() += amount;
    }
}

fn raise(total: &mut Amounts, least: &Amounts) {
    for (resource, amount) in least {
        let held = total.entry(resource.clone()).or_default();
        *held = (*held).max(*amount);
    }
}

/// The address of the node with this number, in a half of the network that is set aside for tests.
pub(super) fn host_address(number: usize) -> String {
    format!("198.18.{}.{}", 1 + number / 250, 1 + number % 250)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn pod(spec: Value) -> Value {
        json!({"spec": spec})
    }

    fn place(rooms: &Rooms, pod: &Value) -> Result<usize, String> {
        rooms.place(pod, &requests(pod))
    }

    #[test]
    fn a_pod_asks_for_its_containers_and_sidecars_or_for_its_largest_init_container() {
        let pod = pod(json!({
            "initContainers": [
                {"resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
                {"resources": {"requests": {"cpu": "1"}}},
            ],
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}, "requests": {"cpu": "1"}}}],
            "overhead": {"cpu": "100m"},
        }));

        let asked = requests(&pod);

        let amount = |resource: &str| asked.get(resource).copied();
        assert_eq!((amount("cpu"), amount("memory")), (Some(3_100), Some(1 << 30)));
        assert_eq!((amount("nvidia.com/gpu"), amount("pods")), (Some(2), Some(1)));
    }

    #[test]
    fn a_pod_goes_to_the_node_with_most_cpu_until_nothing_is_free() {
        let mut rooms = Rooms::new(Nodes::alike(2));
        let pod = pod(json!({"containers": [{"resources": {"requests": {"cpu": "40"}}}]}));

        for expected in [0, 1] {
            let number = place(&rooms, &pod).expect("room");
            assert_eq!(number, expected);
            rooms.take(number, &requests(&pod));
        }

        assert_eq!(place(&rooms, &pod), Err("0/2 nodes are available: 2 Insufficient cpu.".to_owned()));
        rooms.give_back(1, &requests(&pod));
        assert_eq!(place(&rooms, &pod), Ok(1));
    }

    #[test]
    fn a_pod_goes_where_there_is_what_it_needs() {
        let nodes = vec![Node::numbered(0).with("nvidia.com/gpu", "0"), Node::numbered(1).with("cpu", "8")];
        let pod = pod(json!({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}));

        assert_eq!(place(&Rooms::new(Nodes(nodes)), &pod), Ok(1));
    }

    #[rstest]
    #[case::selected(json!({"nodeSelector": {"pool": "a"}}), Ok(0))]
    #[case::selected_and_tolerated(
        json!({"nodeSelector": {"pool": "b"}, "tolerations": [{"key": "spot", "value": "yes", "effect": "NoSchedule"}]}), Ok(1))]
    #[case::any_tolerated(json!({"nodeSelector": {"pool": "b"}, "tolerations": [{"operator": "Exists"}]}), Ok(1))]
    #[case::not_tolerated(json!({"nodeSelector": {"pool": "b"}}), Err(
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, \
         1 node(s) had untolerated taint {spot: yes}."))]
    fn a_pod_goes_where_labels_and_taints_let_it(#[case] spec: Value, #[case] placed: Result<usize, &str>) {
        let nodes = vec![
            Node::numbered(0).labelled("pool", "a"),
            Node::numbered(1).labelled("pool", "b").tainted("spot", "yes"),
        ];

        let found = place(&Rooms::new(Nodes(nodes)), &pod(spec));

        assert_eq!(found, placed.map_err(str::to_owned));
    }
}

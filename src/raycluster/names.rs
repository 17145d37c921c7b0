//! How the objects of a cluster are called. Nothing here is random: who plans twice from the same, or from something old,
//! asks for the same names again, and the API server refuses the second object.

use kube_core::ResourceExt;
use sha2::{Digest, Sha256};

use super::groups::Role;
use sluice_api::fingerprint;
use sluice_api::ray::{HeadGroupSpec, RayCluster};

/// The domain of the names of Services.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// How much of the cluster and group a pod's name keeps, in characters: 63 less `-worker-` and the suffix.
const PREFIX_LENGTH: usize = 50;
/// How long the value of a label may be, in characters.
const LABEL_LENGTH: usize = 63;
/// Letters and digits that can't spell a word, nor be taken for one another.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// How many suffixes of five of them there are.
const SUFFIXES: u64 = 27_u64.pow(5);
/// From one slot's suffix to the next. It has no factor in common with [`SUFFIXES`], so no two slots share one.
const STRIDE: u64 = 8_796_091;

/// The name of the head Service (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`).
pub fn head_service(cluster: &RayCluster) -> String {
    own_head_service(&cluster.spec.head_group_spec)
        .map_or_else(|| format!("{}-head-svc", cluster.name_any()), str::to_owned)
}

/// The name that the spec gives the head Service.
pub fn own_head_service(head: &HeadGroupSpec) -> Option<&str> {
    head.head_service.as_ref()?.pointer("/metadata/name")?.as_str().filter(|name| !name.is_empty())
}

/// The name of the Service that lets the hosts of multi-host replicas find each other.
pub fn headless_service(cluster: &RayCluster) -> String {
    format!("{}-headless", cluster.name_any())
}

/// The name of the Service that requests are sent to, if the cluster serves without a RayService.
pub fn serve_service(cluster: &RayCluster) -> String {
    format!("{}-serve-svc", cluster.name_any())
}

/// The name of the ServiceAccount of the head of a cluster with an autoscaler: the user's, or else that of [`access`].
pub fn head_account(cluster: &RayCluster) -> String {
    super::access::own_account(cluster).map_or_else(|| access(cluster), str::to_owned)
}

/// The name of the Role of the autoscaler, and of what binds it.
pub fn access(cluster: &RayCluster) -> String {
    clipped(&cluster.name_any())
}

/// The name of the Secret that the token of a cluster is kept in, unless the user names one.
pub fn token_secret(cluster: &RayCluster) -> String {
    clipped(&cluster.name_any())
}

/// The name of the Ingress that leads to the dashboard.
pub fn ingress(cluster: &RayCluster) -> String {
    clipped(&format!("{}-head-ingress", cluster.name_any()))
}

/// The name of the ControllerRevision with this number. It has five characters of the hash of the cluster's uid in it, so that a cluster
/// made anew doesn't meet what is left of its namesake.
pub fn revision(cluster: &RayCluster, number: i64) -> String {
    format!("{}-{}-{number}", cluster.name_any(), fingerprint::short(&cluster.uid().unwrap_or_default()))
}

/// The name of the ControllerRevision that keeps the Serve configuration with this hash for a cluster.
pub fn serve_config(cluster: &RayCluster, hash: &str) -> String {
    format!("{}-{}-serve-{hash}", cluster.name_any(), fingerprint::short(&cluster.uid().unwrap_or_default()))
}

/// The name of the Job that deletes what the cluster has kept in a Redis (KubeRay 1.7
/// `ray-operator/controllers/ray/utils/util.go`, `TrimJobName`).
pub fn redis_cleanup(cluster: &RayCluster) -> String {
    let name = format!("{}-redis-cleanup", cluster.name_any());
    let kept = end_of(&name, LABEL_LENGTH);
    match kept.strip_prefix(|first: char| first.is_ascii_punctuation()) {
        Some(rest) => format!("r{rest}"),
        None => kept.to_owned(),
    }
}

/// The last 50 characters of a name, the first of them a letter (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`,
/// `CheckName`).
fn clipped(name: &str) -> String {
    let kept = end_of(name, PREFIX_LENGTH);
    match kept.strip_prefix(|first: char| !first.is_ascii_alphabetic()) {
        Some(rest) => format!("r{rest}"),
        None => kept.to_owned(),
    }
}

/// The last characters of a name of ASCII ones.
fn end_of(name: &str, length: usize) -> &str {
    &name[name.len().saturating_sub(length)..]
}

/// The name by which workers reach the head.
pub fn head_address(cluster: &RayCluster) -> String {
    format!("{}.{}.svc.{CLUSTER_DOMAIN}", head_service(cluster), cluster.namespace().unwrap_or_default())
}

/// The label that all pods of a cluster in one role share.
pub fn identifier(cluster: &RayCluster, role: Role) -> String {
    format!("{}-{role}", cluster.name_any())
}

/// The name of the pod in a slot of a group. Two slots of a group never share a name; another `attempt` gives another name.
pub fn pod(cluster: &RayCluster, group: &str, role: Role, slot: u32, attempt: u32) -> String {
    let prefix = match role {
        Role::Head => cluster.name_any(),
        Role::Worker => format!("{}-{group}", cluster.name_any()),
    };
    let prefix: String = prefix.chars().take(PREFIX_LENGTH).map(dns_character).collect();
    format!("{prefix}-{role}-{}", suffix(&[&cluster.uid().unwrap_or_default(), group, &attempt.to_string()], slot))
}

/// The name of a replica of several hosts.
pub fn replica(cluster: &RayCluster, group: &str, replica: u32, attempt: u32) -> String {
    let uid = cluster.uid().unwrap_or_default();
    format!("{group}-{}", suffix(&["replica", &uid, group, &attempt.to_string()], replica))
}

/// A group's name may hold what a pod's name may not.
fn dns_character(character: char) -> char {
    match character.to_ascii_lowercase() {
        allowed @ ('a'..='z' | '0'..='9' | '-' | '.') => allowed,
        _ => '-',
    }
}

fn suffix(of: &[&str], index: u32) -> String {
    let digest = Sha256::digest(of.join("/"));
    let start = digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut rest = (start % SUFFIXES + u64::from(index) * STRIDE) % SUFFIXES;
    let mut letters = String::with_capacity(5);
    for _ in 0..5 {
        letters.push(char::from(ALPHABET[(rest % 27) as usize]));
        rest /= 27;
    }
    letters
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fixtures::cluster;

    #[test]
    fn a_pod_has_the_same_name_whenever_it_is_asked_for() {
        let cluster = cluster();
        assert_eq!(pod(&cluster, "small", Role::Worker, 3, 0), pod(&cluster, "small", Role::Worker, 3, 0));
        assert_ne!(pod(&cluster, "small", Role::Worker, 3, 0), pod(&cluster, "small", Role::Worker, 3, 1));
        let mut next = cluster.clone();
        next.metadata.uid = Some("another".into());
        assert_ne!(pod(&cluster, "small", Role::Worker, 3, 0), pod(&next, "small", Role::Worker, 3, 0));
    }

    #[test]
    fn no_two_slots_of_a_group_share_a_name() {
        let cluster = cluster();
        let names: BTreeSet<_> = (0..20_000).map(|slot| pod(&cluster, "small", Role::Worker, slot, 0)).collect();
        assert_eq!(names.len(), 20_000);
    }

    #[test]
    fn a_long_name_is_clipped_and_stays_a_dns_label() {
        let mut cluster = cluster();
        cluster.metadata.name = Some("c".repeat(53));
        let name = pod(&cluster, "Big_Group", Role::Worker, 0, 0);
        assert_eq!(name.len(), 63);
        cluster.metadata.name = Some("demo".into());
        let name = pod(&cluster, "Big_Group", Role::Worker, 0, 0);
        assert!(name.starts_with("demo-big-group-worker-"), "{name}");
    }
}

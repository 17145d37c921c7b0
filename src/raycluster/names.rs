//! Names of the objects of a cluster. They are deterministic: planning twice, or from a stale
//! cache, yields the same names, and the API server rejects the duplicate.

use kube_core::ResourceExt;
use sha2::{Digest, Sha256};

use super::groups::RayNodeType;
use sluice_api::canonical_hash;
use sluice_api::ray::{HeadGroupSpec, RayCluster};

/// DNS domain of Services.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// Maximum length of the cluster and group in a pod's name, in characters: 63 less `-worker-` and
/// the suffix.
const MAX_PREFIX_LENGTH: usize = 50;
/// Maximum length of a label value, in characters.
const MAX_LABEL_LENGTH: usize = 63;
/// Letters and digits that can't form words and are not easily confused.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Number of five-character suffixes over [`ALPHABET`].
const SUFFIX_COUNT: u64 = 27_u64.pow(5);
/// Distance between the suffixes of consecutive pods. It is coprime to [`SUFFIX_COUNT`], so no two pods
/// share a suffix.
const STRIDE: u64 = 8_796_091;

/// Returns the name of the head Service (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`).
pub fn head_service(cluster: &RayCluster) -> String {
    user_head_service(&cluster.spec.head_group_spec)
        .map_or_else(|| format!("{}-head-svc", cluster.name_any()), str::to_owned)
}

/// Returns the name that the user gives the head Service; `None` if it is unset or empty.
pub fn user_head_service(head: &HeadGroupSpec) -> Option<&str> {
    head.head_service.as_ref()?.pointer("/metadata/name")?.as_str().filter(|name| !name.is_empty())
}

/// Returns the name of the headless Service through which the hosts of multi-host replicas find
/// each other.
pub fn headless_service(cluster: &RayCluster) -> String {
    format!("{}-headless", cluster.name_any())
}

/// Returns the name of the Serve Service of a cluster that serves without a RayService.
pub fn serve_service(cluster: &RayCluster) -> String {
    format!("{}-serve-svc", cluster.name_any())
}

/// Returns the ServiceAccount name of the head of a cluster with an autoscaler: the user's, or else
/// [`autoscaler_rbac`].
pub fn head_service_account(cluster: &RayCluster) -> String {
    super::autoscaler_rbac::user_service_account(cluster).map_or_else(|| autoscaler_rbac(cluster), str::to_owned)
}

/// Returns the name of the autoscaler's Role and RoleBinding.
pub fn autoscaler_rbac(cluster: &RayCluster) -> String {
    trimmed(&cluster.name_any())
}

/// Returns the name of the auth token Secret, unless the user names one.
pub fn token_secret(cluster: &RayCluster) -> String {
    trimmed(&cluster.name_any())
}

/// Returns the name of the dashboard Ingress.
pub fn ingress(cluster: &RayCluster) -> String {
    trimmed(&format!("{}-head-ingress", cluster.name_any()))
}

/// Returns the name of the ControllerRevision with this number. It contains five characters of the
/// hash of the cluster's uid, so that a recreated cluster does not collide with the revisions of
/// its predecessor.
pub fn revision(cluster: &RayCluster, number: i64) -> String {
    format!("{}-{}-{number}", cluster.name_any(), canonical_hash::short_hash(&cluster.uid().unwrap_or_default()))
}

/// Returns the name of the ControllerRevision that stores the Serve configuration with this hash.
pub fn serve_config(cluster: &RayCluster, hash: &str) -> String {
    format!("{}-{}-serve-{hash}", cluster.name_any(), canonical_hash::short_hash(&cluster.uid().unwrap_or_default()))
}

/// Returns the name of the Job that deletes the cluster's keys from Redis (KubeRay 1.7
/// `ray-operator/controllers/ray/utils/util.go`, `TrimJobName`).
pub fn redis_cleanup(cluster: &RayCluster) -> String {
    let name = format!("{}-redis-cleanup", cluster.name_any());
    let kept = last_characters(&name, MAX_LABEL_LENGTH);
    match kept.strip_prefix(|first: char| first.is_ascii_punctuation()) {
        Some(rest) => format!("r{rest}"),
        None => kept.to_owned(),
    }
}

/// Trims a name to its last 50 characters, and replaces a first character that is not a letter by
/// `r` (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`,
/// `CheckName`).
fn trimmed(name: &str) -> String {
    let kept = last_characters(name, MAX_PREFIX_LENGTH);
    match kept.strip_prefix(|first: char| !first.is_ascii_alphabetic()) {
        Some(rest) => format!("r{rest}"),
        None => kept.to_owned(),
    }
}

/// Returns the last `length` characters of an ASCII name.
fn last_characters(name: &str, length: usize) -> &str {
    &name[name.len().saturating_sub(length)..]
}

/// Returns the DNS name of the head Service, which workers connect to.
pub fn head_address(cluster: &RayCluster) -> String {
    format!("{}.{}.svc.{CLUSTER_DOMAIN}", head_service(cluster), cluster.namespace().unwrap_or_default())
}

/// Returns the value of the label `ray.io/identifier` for a node type.
pub fn identifier(cluster: &RayCluster, role: RayNodeType) -> String {
    format!("{}-{role}", cluster.name_any())
}

/// Returns the name of the pod with this ordinal in its group. Two ordinals of a group never share
/// a name; another `attempt` yields another name.
pub fn pod(cluster: &RayCluster, group: &str, role: RayNodeType, slot: u32, attempt: u32) -> String {
    let prefix = match role {
        RayNodeType::Head => cluster.name_any(),
        RayNodeType::Worker => format!("{}-{group}", cluster.name_any()),
    };
    let prefix: String = prefix.chars().take(MAX_PREFIX_LENGTH).map(dns_character).collect();
    format!("{prefix}-{role}-{}", suffix(&[&cluster.uid().unwrap_or_default(), group, &attempt.to_string()], slot))
}

/// Returns the name of a multi-host replica.
pub fn replica(cluster: &RayCluster, group: &str, replica: u32, attempt: u32) -> String {
    let uid = cluster.uid().unwrap_or_default();
    format!("{group}-{}", suffix(&["replica", &uid, group, &attempt.to_string()], replica))
}

/// Maps a character of a group name to one that is valid in a pod name.
fn dns_character(character: char) -> char {
    match character.to_ascii_lowercase() {
        allowed @ ('a'..='z' | '0'..='9' | '-' | '.') => allowed,
        _ => '-',
    }
}

/// Returns the suffix number `index` of the sequence that starts at the hash of `parts`.
fn suffix(parts: &[&str], index: u32) -> String {
    let digest = Sha256::digest(parts.join("/"));
    let start = digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut rest = (start % SUFFIX_COUNT + u64::from(index) * STRIDE) % SUFFIX_COUNT;
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
    fn pod_name_is_deterministic() {
        let cluster = cluster();
        assert_eq!(
            pod(&cluster, "small", RayNodeType::Worker, 3, 0),
            pod(&cluster, "small", RayNodeType::Worker, 3, 0)
        );
        assert_ne!(
            pod(&cluster, "small", RayNodeType::Worker, 3, 0),
            pod(&cluster, "small", RayNodeType::Worker, 3, 1)
        );
        let mut next = cluster.clone();
        next.metadata.uid = Some("another".into());
        assert_ne!(pod(&cluster, "small", RayNodeType::Worker, 3, 0), pod(&next, "small", RayNodeType::Worker, 3, 0));
    }

    #[test]
    fn pods_of_a_group_have_distinct_names() {
        let cluster = cluster();
        let names: BTreeSet<_> = (0..20_000).map(|slot| pod(&cluster, "small", RayNodeType::Worker, slot, 0)).collect();
        assert_eq!(names.len(), 20_000);
    }

    #[test]
    fn long_pod_name_is_trimmed_to_a_dns_label() {
        let mut cluster = cluster();
        cluster.metadata.name = Some("c".repeat(53));
        let name = pod(&cluster, "Big_Group", RayNodeType::Worker, 0, 0);
        assert_eq!(name.len(), 63);
        cluster.metadata.name = Some("demo".into());
        let name = pod(&cluster, "Big_Group", RayNodeType::Worker, 0, 0);
        assert!(name.starts_with("demo-big-group-worker-"), "{name}");
    }
}

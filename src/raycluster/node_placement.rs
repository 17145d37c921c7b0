//! Node placement of pods: they run on the nodes of the ResourceFlavor whose quota they use.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use sluice_api::toleration;

/// Node labels and tolerations that a pod gets from its assigned flavors (Kueue 0.19
/// `pkg/podset/podset.go`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodePlacement {
    /// Node labels of the flavors, added to the pod's node selector.
    pub node_labels: BTreeMap<String, String>,
    /// Tolerations of the flavors.
    pub tolerations: Vec<Toleration>,
}

impl NodePlacement {
    /// Adds the node labels and the missing tolerations to a pod.
    pub fn apply_to(&self, pod: &mut PodSpec) {
        if !self.node_labels.is_empty() {
            pod.node_selector.get_or_insert_default().extend(self.node_labels.clone());
        }
        for added in &self.tolerations {
            // The API server rejects the update of a pod if a webhook then merges two that mean the same.
            if !pod.tolerations.iter().flatten().any(|own| toleration::is_same(own, added)) {
                pod.tolerations.get_or_insert_default().push(added.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_extends_node_selector_and_tolerations_of_the_user() {
        let gpu = Toleration { key: Some("gpu".into()), ..Toleration::default() };
        let own = Toleration { key: Some("own".into()), ..Toleration::default() };
        let placement = NodePlacement {
            node_labels: [("accelerator".to_owned(), "h100".to_owned())].into(),
            tolerations: vec![gpu.clone()],
        };
        let mut pod = PodSpec {
            node_selector: Some([("zone".to_owned(), "a".to_owned())].into()),
            tolerations: Some(vec![own.clone()]),
            ..PodSpec::default()
        };

        placement.apply_to(&mut pod);
        placement.apply_to(&mut pod);

        let selector = [("accelerator".to_owned(), "h100".to_owned()), ("zone".to_owned(), "a".to_owned())];
        assert_eq!(pod.node_selector, Some(selector.into()));
        assert_eq!(pod.tolerations, Some(vec![own, gpu]));
    }

    #[test]
    fn toleration_in_another_notation_is_not_added_twice() {
        // Given a pod and two flavors that tolerate the same taint, in two notations,
        let implicit = Toleration { key: Some("gpu".into()), value: Some("a".into()), ..Toleration::default() };
        let explicit = Toleration { operator: Some("Equal".into()), ..implicit.clone() };
        let placement =
            NodePlacement { tolerations: vec![explicit.clone(), implicit.clone()], ..NodePlacement::default() };
        let mut own = PodSpec { tolerations: Some(vec![implicit.clone()]), ..PodSpec::default() };
        let mut none = PodSpec::default();

        // when the flavors are assigned, then it tolerates the taint once, as the user or else the first flavor says.
        placement.apply_to(&mut own);
        placement.apply_to(&mut none);
        assert_eq!((own.tolerations, none.tolerations), (Some(vec![implicit]), Some(vec![explicit])));
    }
}

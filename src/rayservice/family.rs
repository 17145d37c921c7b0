//! What each child is to its service. The status tells, and so do the objects themselves where the status is behind: news that
//! got lost in a crash is found again.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::hash::{self, Fit};
use super::observation::ServeObservation;
use super::upgrade::{Rival, Standing};
use super::{View, incremental, services};
use crate::api::condition;
use crate::api::ray::{RayCluster, RayClusterSpec, RayService, RayServiceStatus, names};
use crate::plan::ServeStatus;

/// The children of a service.
pub(super) struct Family<'a> {
    /// The one that serves.
    pub(super) active: Option<Child<'a>>,
    /// The others that live, the oldest first.
    pub(super) others: Vec<Child<'a>>,
}

impl<'a> Family<'a> {
    pub(super) fn of(view: &View<'a>) -> Self {
        let mut others: Vec<Child<'a>> =
            view.children.iter().filter(|child| !is_going(child)).map(|child| Child::of(view, child)).collect();
        others.sort_by_key(|child| (child.made_at(), child.name()));
        let active = Self::find_active(view, &others).map(|index| others.remove(index));
        Self { active, others }
    }

    /// The child that the serve Service leads to is the active one, whatever the status says: that is where requests go. In an
    /// upgrade in steps they go to two of them.
    fn find_active(view: &View<'a>, children: &[Child<'a>]) -> Option<usize> {
        let in_steps = incremental::options(view.service).and_then(|_| incremental::find_active(view, children));
        if in_steps.is_some() {
            return in_steps;
        }
        let named = |name: &str| children.iter().position(|child| child.name() == name);
        let selected = services::serving(view).and_then(named);
        selected.or_else(|| active_name(view.service).and_then(named))
    }

    /// The children that don't serve, as the upgrade to the cluster with this hash sees them.
    pub(super) fn rivals(&self, service: &RayService, wanted: &str) -> Vec<Rival> {
        let spec = &service.spec.ray_cluster_config;
        let rival = |child: &Child<'_>| Rival { fit: child.fit(spec, wanted), standing: child.standing(service) };
        self.others.iter().map(rival).collect()
    }
}

/// The name of the active cluster, as the status has it.
pub(super) fn active_name(service: &RayService) -> Option<&str> {
    name_in(service.status.as_ref()?.active_service_status.as_ref())
}

/// The name of the pending cluster, as the status has it.
pub(super) fn pending_name(service: &RayService) -> Option<&str> {
    name_in(service.status.as_ref()?.pending_service_status.as_ref())
}

fn name_in(status: Option<&RayServiceStatus>) -> Option<&str> {
    status?.ray_cluster_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether a cluster is being deleted.
pub(super) fn is_going(cluster: &RayCluster) -> bool {
    cluster.metadata.deletion_timestamp.is_some()
}

/// A child that lives.
#[derive(Clone, Copy)]
pub(super) struct Child<'a> {
    pub(super) cluster: &'a RayCluster,
    /// Its head pod.
    pub(super) head: Option<&'a Pod>,
    /// What is known of Serve on it.
    pub(super) serve: &'a ServeObservation,
}

/// Of a cluster that was never asked.
static NOTHING: ServeObservation = ServeObservation::nothing();

impl<'a> Child<'a> {
    fn of(view: &View<'a>, cluster: &'a RayCluster) -> Self {
        let is_its_head = |pod: &&Pod| {
            let controlled =
                pod.owner_references().iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref());
            controlled && pod.metadata.deletion_timestamp.is_none()
        };
        let serve = view.serve.get(&cluster.name_any()).copied();
        Self {
            cluster,
            head: view.head_pods.iter().copied().find(is_its_head),
            serve: serve
                .filter(|observation| observation.is_of(cluster.metadata.uid.as_deref().unwrap_or_default()))
                .unwrap_or(&NOTHING),
        }
    }

    pub(super) fn name(&self) -> String {
        self.cluster.name_any()
    }

    fn made_at(&self) -> Option<Timestamp> {
        self.cluster.creation_timestamp().map(|time| time.0)
    }

    pub(super) fn fit(&self, spec: &RayClusterSpec, wanted: &str) -> Fit {
        hash::fit(spec, wanted, self.cluster)
    }

    fn standing(&self, service: &RayService) -> Standing {
        let name = self.name();
        if pending_name(service) == Some(name.as_str()) {
            Standing::Pending
        } else if self.has_served(service) {
            Standing::Retired
        } else {
            Standing::New
        }
    }

    /// Whether it served until it was replaced. Whoever replaces a cluster marks the old one before the status forgets it.
    pub(super) fn has_served(&self, service: &RayService) -> bool {
        self.delete_after().is_some() || active_name(service) == Some(self.name().as_str())
    }

    /// When it is to be deleted, if it has served and doesn't any more. What can't be read has been tampered with, and is over.
    pub(super) fn delete_after(&self) -> Option<Timestamp> {
        let text = self.cluster.annotations().get(names::DELETE_AFTER_ANNOTATION)?;
        Some(text.parse().unwrap_or(Timestamp::MIN))
    }

    /// Whether its gate is closed, so that it has no pods.
    pub(super) fn is_suspended(&self) -> bool {
        self.cluster.spec.suspend == Some(true)
    }

    /// Since when its head has been ready for requests, in whole seconds; `None` while it isn't.
    pub(super) fn head_ready_since(&self) -> Option<Timestamp> {
        let conditions = self.cluster.status.as_ref()?.conditions.as_slice();
        let ready = condition::get(conditions, names::HEAD_POD_READY).filter(|ready| ready.status == "True")?;
        Some(ready.last_transition_time.0)
    }

    /// The applications on it as they are with the head that it has now, and with the configuration that was applied last.
    pub(super) fn current_status(&self) -> Option<&'a ServeStatus> {
        self.serve.current_status(self.head_ready_since()?, self.head_uid())
    }

    /// Whether Serve on it can't be asked, or doesn't answer.
    pub(super) fn is_mute(&self) -> bool {
        self.head_ready_since().is_none() || self.serve.is_silent()
    }

    /// The uid of its head pod, if there is one.
    pub(super) fn head_uid(&self) -> Option<&'a str> {
        self.head?.metadata.uid.as_deref()
    }

    /// The hash of the configuration that was applied to it last.
    pub(super) fn applied_config(&self) -> Option<&'a str> {
        let noted = || self.cluster.annotations().get(names::SERVE_CONFIG_HASH_ANNOTATION).map(String::as_str);
        self.serve.applied_config().or_else(noted)
    }

    /// Whether it runs this configuration.
    pub(super) fn runs(&self, config_hash: &str) -> bool {
        self.applied_config() == Some(config_hash) && self.current_status().is_some_and(ServeStatus::is_running)
    }

    /// Whether there is a pod that would get requests if they were sent to it.
    pub(super) fn has_serve_pods(&self) -> bool {
        let workers = self.cluster.status.as_ref().and_then(|status| status.ready_worker_replicas).unwrap_or(0);
        let head_serves = self.head.is_some_and(|head| {
            head.labels().get(names::SERVE_LABEL).is_some_and(|serves| serves == "true") && is_ready(head)
        });
        workers > 0 || head_serves
    }
}

/// Whether a pod is being deleted.
pub(super) fn is_going_pod(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether a pod is ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

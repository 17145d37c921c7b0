//! Deletion of objects, with finalizers and propagation policies.

use serde_json::{Value, json};

use super::{ControlPlane, Name, decode_object, owner_uid};
use crate::EngineInput;
use sluice_api::condition;

impl ControlPlane {
    /// Deletes an object, as a user.
    pub(in crate::tests) fn delete(&mut self, kind: &str, name: &str) {
        self.begin_deletion(&(kind.to_owned(), name.to_owned()), false);
    }

    /// Deletes an object with foreground propagation, as a user.
    pub(in crate::tests) fn delete_in_foreground(&mut self, kind: &str, name: &str) {
        self.begin_deletion(&(kind.to_owned(), name.to_owned()), true);
    }

    /// Deletes an object with the propagation policy Orphan, as a user: its dependents lose their
    /// owner reference one after the other, those of the kind `first` first.
    pub(in crate::tests) fn delete_orphaning(&mut self, kind: &str, name: &str, first: &str) {
        let owner = (kind.to_owned(), name.to_owned());
        let (uid, finalizers) = (self.object(kind, name)["metadata"]["uid"].clone(), json!(["orphan"]));
        self.patch(&owner, &json!({"metadata": {"finalizers": finalizers}}));
        self.begin_deletion(&owner, false);
        self.advance(0);
        let of_owner = self.objects.iter().filter(|(_, object)| owner_uid(object) == Some(&uid));
        let mut dependents: Vec<Name> = of_owner.map(|(name, _)| name.clone()).collect();
        dependents.sort_by_key(|(kind, _)| kind != first);
        for dependent in dependents {
            self.patch(&dependent, &json!({"metadata": {"ownerReferences": null}}));
            self.advance(0);
        }
        self.patch(&owner, &json!({"metadata": {"finalizers": null}}));
        self.advance(0);
    }

    /// Marks an object as terminating, and removes it if no finalizer is left.
    pub(super) fn begin_deletion(&mut self, name: &Name, foreground: bool) {
        let Some(object) =
            self.objects.get_mut(name).filter(|object| object["metadata"]["deletionTimestamp"].is_null())
        else {
            return;
        };
        object["metadata"]["deletionTimestamp"] = json!(condition::whole_seconds(self.now));
        if foreground {
            let finalizers = &mut object["metadata"]["finalizers"];
            let mut all = finalizers.as_array().cloned().unwrap_or_default();
            all.push(json!("foregroundDeletion"));
            *finalizers = Value::Array(all);
        }
        self.record_version(name);
        self.finish_deletion(name);
    }

    /// Removes a terminating object without finalizers.
    pub(super) fn finish_deletion(&mut self, name: &Name) {
        let Some(object) = self.objects.get(name) else { return };
        let meta = &object["metadata"];
        let lingers = name.0 == "Pod" && self.pods_linger;
        let is_protected = meta["finalizers"].as_array().is_some_and(|all| !all.is_empty()) || lingers;
        if meta["deletionTimestamp"].is_null() || is_protected {
            return;
        }
        self.versions += 1;
        let mut last = self.objects.remove(name).expect("an existing object");
        last["metadata"]["resourceVersion"] = json!(self.versions.to_string());
        if self.lost_deletions != Some(name.0.as_str()) {
            self.engine_inputs.extend(decode_object(&name.0, &last).map(EngineInput::Deleted));
        }
    }
}

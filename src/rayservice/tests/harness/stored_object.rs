//! Objects of the harness. Each version of an object is decoded once: the planner reads all of them
//! in every turn, and few have changed.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// A manifest, and the values that were derived from it.
#[derive(Debug, Clone)]
pub(super) struct StoredObject {
    manifest: Value,
    derived: RefCell<BTreeMap<TypeId, Rc<dyn Any>>>,
}

impl StoredObject {
    /// Returns an object from which nothing has been derived.
    pub(super) fn new(manifest: Value) -> Self {
        Self { manifest, derived: RefCell::default() }
    }

    /// Returns the manifest.
    pub(super) fn manifest(&self) -> &Value {
        &self.manifest
    }

    /// Returns the manifest for a change, and drops what was derived from it.
    pub(super) fn manifest_mut(&mut self) -> &mut Value {
        self.derived.get_mut().clear();
        &mut self.manifest
    }

    /// Returns the object as its type.
    pub(super) fn decoded<K: DeserializeOwned + 'static>(&self) -> Rc<K> {
        self.derived(|| K::deserialize(&self.manifest).expect("an object of its kind"))
    }

    /// Returns the result of `derive`, which depends only on the manifest and runs once per version.
    pub(super) fn derived<T: 'static>(&self, derive: impl FnOnce() -> T) -> Rc<T> {
        let known = self.derived.borrow().get(&TypeId::of::<T>()).cloned();
        let value = known.unwrap_or_else(|| Rc::new(derive()));
        self.derived.borrow_mut().insert(TypeId::of::<T>(), value.clone());
        value.downcast().expect("the type that it was stored under")
    }
}

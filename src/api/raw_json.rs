//! Raw JSON with copy-on-write clones.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// JSON value that clones share until one of them is modified. Pod templates make up most of an
/// object, and are cloned and compared in every plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Arc<Value>);

impl From<Value> for RawJson {
    fn from(value: Value) -> Self {
        Self(Arc::new(value))
    }
}

impl Deref for RawJson {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl DerefMut for RawJson {
    /// Copies the value first if it is shared.
    fn deref_mut(&mut self) -> &mut Value {
        Arc::make_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn modifying_a_clone_leaves_the_original_unchanged() {
        let original = RawJson::from(json!({"spec": {"a": 1}}));
        let mut changed = original.clone();
        assert!(Arc::ptr_eq(&original.0, &changed.0));

        changed["spec"]["a"] = json!(2);

        assert_eq!((&*original, &*changed), (&json!({"spec": {"a": 1}}), &json!({"spec": {"a": 2}})));
    }
}

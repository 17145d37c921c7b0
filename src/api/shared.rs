//! JSON that is kept as it was written.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A JSON value that whoever clones it shares, until one of them changes it: pod templates are most of an object, and are cloned and
/// compared with every plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SharedJson(Arc<Value>);

impl From<Value> for SharedJson {
    fn from(value: Value) -> Self {
        Self(Arc::new(value))
    }
}

impl Deref for SharedJson {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl DerefMut for SharedJson {
    /// Those who share it keep it as it was.
    fn deref_mut(&mut self) -> &mut Value {
        Arc::make_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_changes_it_changes_it_for_himself() {
        let original = SharedJson::from(json!({"spec": {"a": 1}}));
        let mut changed = original.clone();
        assert!(Arc::ptr_eq(&original.0, &changed.0));

        changed["spec"]["a"] = json!(2);

        assert_eq!((&*original, &*changed), (&json!({"spec": {"a": 1}}), &json!({"spec": {"a": 2}})));
    }
}

//! Index of objects by their labels, so that a selector does not have to be compared with each of
//! them.

use std::collections::{BTreeMap, BTreeSet};

/// Names of objects by namespace, label and value of the label.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    names: BTreeMap<(String, String, String), BTreeSet<String>>,
}

impl LabelIndex {
    /// Adds an object with these labels.
    pub(super) fn insert<'a>(
        &mut self,
        (namespace, name): &(String, String),
        labels: impl Iterator<Item = (&'a str, &'a str)>,
    ) {
        for (label, value) in labels {
            self.names.entry(key(namespace, label, value)).or_default().insert(name.clone());
        }
    }

    /// Removes an object that was added with these labels.
    pub(super) fn remove<'a>(
        &mut self,
        (namespace, name): &(String, String),
        labels: impl Iterator<Item = (&'a str, &'a str)>,
    ) {
        for (label, value) in labels {
            let key = key(namespace, label, value);
            if let Some(names) = self.names.get_mut(&key) {
                names.remove(name);
                if names.is_empty() {
                    self.names.remove(&key);
                }
            }
        }
    }

    /// Iterates over the names of the objects with this label, in order.
    pub(super) fn names(&self, namespace: &str, label: &str, value: &str) -> impl Iterator<Item = &str> {
        self.names.get(&key(namespace, label, value)).into_iter().flatten().map(String::as_str)
    }
}

fn key(namespace: &str, label: &str, value: &str) -> (String, String, String) {
    (namespace.to_owned(), label.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> (String, String) {
        ("ns".to_owned(), name.to_owned())
    }

    #[test]
    fn objects_are_found_by_each_label_until_they_are_removed() {
        let mut index = LabelIndex::default();
        index.insert(&object("b"), [("app", "x"), ("tier", "web")].into_iter());
        index.insert(&object("a"), [("app", "x")].into_iter());
        let names =
            |index: &LabelIndex, label, value| index.names("ns", label, value).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            (names(&index, "app", "x"), names(&index, "tier", "web")),
            (vec!["a".into(), "b".into()], vec!["b".into()])
        );
        assert_eq!(index.names("other", "app", "x").count(), 0);

        index.remove(&object("b"), [("app", "x"), ("tier", "web")].into_iter());

        assert_eq!((names(&index, "app", "x"), names(&index, "tier", "web")), (vec!["a".into()], vec![]));
    }
}

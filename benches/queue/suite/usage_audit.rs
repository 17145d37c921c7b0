//! Independent accounting of usage, to check that quota is never exceeded.

use super::BenchError;
use super::scenario::{Queue, Units, add};

/// Usage and limits of all queues and trees.
#[derive(Debug, Default)]
pub(super) struct UsageAudit {
    queues: Vec<Account>,
    trees: Vec<Account>,
    tree_of: Vec<usize>,
}

#[derive(Debug, Clone, Default)]
struct Account {
    name: String,
    usage: Units,
    /// `None` if only the limit of the tree applies.
    limit: Option<Units>,
}

impl UsageAudit {
    pub(super) fn new(queues: &[Queue]) -> Self {
        let mut book = Self::default();
        for queue in queues {
            while book.trees.len() <= queue.tree {
                let name = format!("tree {}", book.trees.len());
                book.trees.push(Account { name, limit: Some(Units::new()), ..Account::default() });
            }
            for (resource, units) in &queue.nominal {
                add(book.trees[queue.tree].limit.get_or_insert_default(), resource, *units);
            }
            book.tree_of.push(queue.tree);
            let name = format!("ClusterQueue {}", queue.name());
            book.queues.push(Account { name, usage: Units::new(), limit: queue.max_usage.clone() });
        }
        book
    }

    /// Adds the usage of a workload. Errors if it exceeds a limit.
    pub(super) fn add(&mut self, queue: usize, units: &Units, now: i64) -> Result<(), BenchError> {
        self.queues[queue].change(units, 1, now)?;
        self.trees[self.tree_of[queue]].change(units, 1, now)
    }

    /// Removes the usage of a workload.
    pub(super) fn release(&mut self, queue: usize, units: &Units, now: i64) -> Result<(), BenchError> {
        self.queues[queue].change(units, -1, now)?;
        self.trees[self.tree_of[queue]].change(units, -1, now)
    }
}

impl Account {
    fn change(&mut self, units: &Units, sign: i64, at: i64) -> Result<(), BenchError> {
        for (resource, units) in units {
            let held = add(&mut self.usage, resource, sign * units);
            let Some(limit) = &self.limit else { continue };
            let limit = limit.iter().find(|(name, _)| name == resource).map_or(0, |(_, units)| *units);
            if held > limit {
                return Err(BenchError::OverQuota { at, holder: self.name.clone(), resource, held, limit });
            }
        }
        Ok(())
    }
}

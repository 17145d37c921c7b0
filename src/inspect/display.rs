//! Text output of an explanation.

use std::fmt::{self, Write};

use super::explain::{Explanation, MemberStatus, PendingStatus, PodSetStatus, SliceState, SliceStatus};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.job)?;
        if !self.queued {
            writeln!(f, "  not queued: names no LocalQueue, or is not managed")?;
        }
        for condition in &self.conditions {
            writeln!(f, "  {}={} ({}): {}", condition.kind, condition.status, condition.reason, condition.message)?;
        }
        for member in &self.members {
            writeln!(f, "  {member}")?;
        }
        for slice in &self.slices {
            write!(f, "{slice}")?;
        }
        Ok(())
    }
}

impl fmt::Display for MemberStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gate = if self.is_unsuspended { "open" } else { "closed" };
        let suffix = if self.is_replacement { " (new spec)" } else { "" };
        write!(f, "{} {}{suffix}: gate {gate}, {} ungated", self.kind, self.name, pods(self.ungated_pods))?;
        if self.gated_pods > 0 {
            write!(f, ", {} gated", self.gated_pods)?;
        }
        Ok(())
    }
}

fn pods(count: u32) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

impl fmt::Display for SliceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            SliceState::Pending => "pending",
            SliceState::Admitted => "admitted",
            SliceState::Evicting => "evicting",
            SliceState::Terminating => "terminating",
        };
        write!(f, "Workload {}: {state}, LocalQueue {}", self.name, self.local_queue)?;
        for (index, name) in self.path.iter().enumerate() {
            write!(f, " > {} {name}", if index == 0 { "ClusterQueue" } else { "Cohort" })?;
        }
        f.write_char('\n')?;
        for pod_set in &self.pod_sets {
            writeln!(f, "  {pod_set}")?;
        }
        match &self.pending {
            Some(pending) => write!(f, "{pending}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PodSetStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod set {}: {}", self.name, pods(self.count.unsigned_abs()))?;
        for (index, (resource, amount)) in self.usage.iter().enumerate() {
            let flavor = self.flavors.get(resource).map(String::as_str).unwrap_or_default();
            write!(f, "{} {resource} {amount} in {flavor}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for PendingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shortfalls.is_empty() {
            writeln!(f, "  {}", self.message)?;
        }
        for short in &self.shortfalls {
            write!(f, "  pod set {}, flavor {}: ", short.pod_set, short.flavor)?;
            write!(f, "{} more {} needed: {} requested", short.missing, short.resource, short.requested)?;
            if short.held != "0" {
                write!(f, ", {} of it held", short.held)?;
            }
            write!(f, ", {} of {} used by others; limited by {}", short.used, short.nominal, short.bound_by)?;
            for (index, (holder, amount)) in short.holders.iter().enumerate() {
                write!(f, "{} {holder} holds {amount}", if index == 0 { ":" } else { "," })?;
            }
            if short.more_holders > 0 {
                write!(f, ", and {} more", short.more_holders)?;
            }
            if let Some(kept) = &short.reserved_for {
                write!(f, ", {} is reserved for {}", kept.amount, kept.largest)?;
                if kept.others > 0 {
                    write!(f, " and {} more", kept.others)?;
                }
            }
            f.write_char('\n')?;
        }
        for remedy in &self.remediations {
            writeln!(f, "  unblocked once {}", remedy.what)?;
        }
        Ok(())
    }
}

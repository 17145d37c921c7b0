//! An explanation for people.

use std::fmt::{self, Write};

use super::explain::{Explanation, MemberStands, PodSetStands, SliceStands, Stands, Waits};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.job)?;
        if !self.queued {
            writeln!(f, "  is in no queue: it names no LocalQueue, or is not managed")?;
        }
        for said in &self.says {
            writeln!(f, "  {}={} ({}): {}", said.kind, said.status, said.reason, said.message)?;
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

impl fmt::Display for MemberStands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gate = if self.open { "open" } else { "closed" };
        let what = if self.takes_place { ", as its spec is now" } else { "" };
        write!(f, "{} {}{what}: gate {gate}, {} run", self.kind, self.name, pods(self.run))?;
        if self.wait > 0 {
            write!(f, ", {} wait for quota", self.wait)?;
        }
        Ok(())
    }
}

fn pods(count: u32) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

impl fmt::Display for SliceStands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stands = match self.stands {
            Stands::Waits => "waits",
            Stands::Holds => "holds quota",
            Stands::GivesBack => "has to give its quota back",
        };
        write!(f, "Workload {} {stands}, LocalQueue {}", self.name, self.local_queue)?;
        for (index, name) in self.path.iter().enumerate() {
            write!(f, " > {} {name}", if index == 0 { "ClusterQueue" } else { "Cohort" })?;
        }
        f.write_char('\n')?;
        for pod_set in &self.pod_sets {
            writeln!(f, "  {pod_set}")?;
        }
        self.waits_for.iter().try_for_each(|waits| write!(f, "{waits}"))
    }
}

impl fmt::Display for PodSetStands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod set {}: {}", self.name, pods(self.count.unsigned_abs()))?;
        for (index, (resource, amount)) in self.usage.iter().enumerate() {
            let flavor = self.flavors.get(resource).map(String::as_str).unwrap_or_default();
            write!(f, "{} {resource} {amount} in {flavor}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.short.is_empty() {
            writeln!(f, "  {}", self.message)?;
        }
        for short in &self.short {
            write!(f, "  pod set {}, flavor {}: ", short.pod_set, short.flavor)?;
            write!(f, "{} of {} short: {} asked for", short.missing, short.resource, short.requested)?;
            if short.held != "0" {
                write!(f, ", {} of it held", short.held)?;
            }
            write!(f, ", others use {} of {}; bound by {}", short.used, short.nominal, short.bound_by)?;
            for (index, (who, amount)) in short.holders.iter().enumerate() {
                write!(f, "{} {who} holds {amount}", if index == 0 { ":" } else { "," })?;
            }
            if short.more_holders > 0 {
                write!(f, ", and {} more hold some", short.more_holders)?;
            }
            if let Some(kept) = &short.kept {
                write!(f, ", {} is kept for {}", kept.amount, kept.first)?;
                if kept.more > 0 {
                    write!(f, " and {} more", kept.more)?;
                }
            }
            f.write_char('\n')?;
        }
        for remedy in &self.unblocked_by {
            writeln!(f, "  goes on once {}", remedy.what)?;
        }
        Ok(())
    }
}

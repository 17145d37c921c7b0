//! Text output of an upgrade plan.

use std::fmt;

use comfy_table::{Table, presets};

use super::strategies::Strategy;
use super::{PlanVerdict, PreemptedJob, ResourceUsage, StrategyOutcome, Timeline, TimelineStep, UpgradePlan};

impl fmt::Display for PlanVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fits => "fits",
            Self::Pending => "pending",
            Self::Never => "never",
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("first cluster"),
            Self::InPlace => f.write_str("in place"),
            Self::NewCluster => f.write_str("NewCluster"),
            Self::Incremental { surge_percent, step_percent } => {
                write!(f, "Incremental, surge {surge_percent}%, step {step_percent}%")
            }
            Self::Recreate => f.write_str("Recreate"),
        }
    }
}

impl fmt::Display for ResourceUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} in {}", self.resource, self.amount, self.flavor)
    }
}

impl fmt::Display for UpgradePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.service, self.verdict)?;
        if let Some(why) = &self.message {
            writeln!(f, "{why}")?;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["", "STRATEGY", "NOW", "PEAK", "MIN QUOTA", "PREEMPTS"]);
        table.add_rows(self.strategies.iter().map(outcome_row));
        writeln!(f, "\n{}", table.trim_fmt())?;
        if self.strategies.iter().any(|way| way.requested) {
            writeln!(f, "\n* requested by the manifest")?;
        }
        for way in &self.strategies {
            if let (true, Some(timeline)) = (way.requested, &way.timeline) {
                writeln!(f, "\n{}: {timeline}", way.strategy)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "at least {} s", self.at_least_seconds)?;
        let mut table = Table::new();
        let header = ["", "AFTER", "CAPACITY", "TRAFFIC", "PODS", "USAGE"];
        table.load_style(presets::NOTHING).set_header(header);
        table.add_rows(self.steps.iter().map(step_row));
        write!(f, "{}", table.trim_fmt())
    }
}

/// Formats one step; capacity, traffic and pods are those of the active + the pending cluster.
fn step_row(step: &TimelineStep) -> [String; 6] {
    let (serving, next) = (&step.active, &step.pending);
    let uses: Vec<String> = step.usage.iter().map(ToString::to_string).collect();
    [
        String::new(),
        format!("{} s", step.after_seconds),
        format!("{}% + {}%", serving.capacity_percent, next.capacity_percent),
        format!("{}% + {}%", serving.traffic_percent, next.traffic_percent),
        format!("{} + {}", serving.pods, next.pods),
        if uses.is_empty() { "-".to_owned() } else { uses.join(", ") },
    ]
}

fn outcome_row(way: &StrategyOutcome) -> [String; 6] {
    let marker = if way.requested { "*" } else { "" };
    [
        marker.to_owned(),
        way.strategy.to_string(),
        way.verdict.to_string(),
        lines(&way.peak),
        min_quota_cell(way),
        preempts_cell(&way.preempts),
    ]
}

fn lines<T: fmt::Display>(each: &[T]) -> String {
    if each.is_empty() {
        return "-".to_owned();
    }
    each.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn min_quota_cell(way: &StrategyOutcome) -> String {
    let Some(quota) = &way.min_quota else { return "-".to_owned() };
    let each: Vec<String> = quota
        .iter()
        .map(|change| format!("{} {} in {} (now {})", change.resource, change.to, change.flavor, change.from))
        .collect();
    lines(&each)
}

fn preempts_cell(preempts: &[PreemptedJob]) -> String {
    let each = preempts.iter().map(|preempted| {
        let loses: Vec<String> = preempted.loses.iter().map(ToString::to_string).collect();
        format!("{}: {}", preempted.job, loses.join(", "))
    });
    lines(&each.collect::<Vec<_>>())
}

//! Checks of the values in a scenario.

use super::{Class, Kind, Scenario};

/// Maximum number of objects or queues, so that a misplaced digit is found before it is created.
const MAX_COUNT: usize = 1_000_000;

impl Scenario {
    /// Returns one message for each field that is not allowed.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(self.short_scale > 0.0 && self.short_scale <= 1.0) {
            problems.push(format!("shortScale: {}: must be above 0 and at most 1", self.short_scale));
        }
        let queues = &self.cohorts.cluster_queues;
        count(&mut problems, "cohorts.count", self.cohorts.count);
        count(&mut problems, "cohorts.clusterQueues.count", queues.count);
        cpu(&mut problems, "cohorts.clusterQueues.nominalCpu", queues.nominal_cpu);
        if let Some(limit) = queues.borrowing_limit_cpu {
            cpu(&mut problems, "cohorts.clusterQueues.borrowingLimitCpu", limit);
        }
        if self.classes.is_empty() {
            problems.push("classes: []: must list at least one class".to_owned());
        }
        for (index, class) in self.classes.iter().enumerate() {
            self.check_class(index, class, &mut problems);
        }
        if let Some(name) = &self.finish_after_created {
            reference(&mut problems, "finishAfterCreated", name, &self.classes);
        }
        self.check_end(&mut problems);
        problems
    }

    fn check_class(&self, index: usize, class: &Class, problems: &mut Vec<String>) {
        let field = |name: &str| format!("classes[{index}].{name}");
        let earlier = &self.classes[..index];
        if !is_dns_label(&class.name) {
            let allowed = "must be 1 to 40 of a-z, 0-9 and -, beginning and ending with a letter or digit";
            problems.push(format!("{}: {:?}: {allowed}", field("name"), class.name));
        }
        if earlier.iter().any(|other| other.name == class.name) {
            problems.push(format!("{}: {:?}: must differ from the other names", field("name"), class.name));
        }
        count(problems, &field("count"), class.count);
        cpu(problems, &field("cpu"), class.cpu);
        if class.kind != Kind::Workload && class.priority != 0 {
            let kind = class.kind;
            problems.push(format!("{}: {}: must be 0 for kind {kind:?}", field("priority"), class.priority));
        }
        if class.kind != Kind::Workload && class.run.is_some() {
            problems.push(format!("{}: must be absent for kind {:?}", field("run"), class.kind));
        }
        self.check_upgrade(index, class, problems);
        if let Some(after) = &class.after {
            reference(problems, &field("after.class"), &after.class, earlier);
        }
    }

    fn check_upgrade(&self, index: usize, class: &Class, problems: &mut Vec<String>) {
        let field = format!("classes[{index}].upgrades");
        match (&class.upgrades, class.kind) {
            (None, Kind::Upgrade) => problems.push(format!("{field}: must name a class for kind Upgrade")),
            (Some(name), Kind::Upgrade) => {
                let services: Vec<Class> = self.classes[..index]
                    .iter()
                    .filter(|other| other.kind == Kind::RayService && other.count == class.count)
                    .cloned()
                    .collect();
                reference(problems, &field, name, &services);
            }
            (Some(name), kind) => problems.push(format!("{field}: {name:?}: must be absent for kind {kind:?}")),
            (None, _) => {}
        }
    }

    fn check_end(&self, problems: &mut Vec<String>) {
        let Some(stop) = self.stop_after_finished else { return };
        let finishing = self.classes.iter().filter(|class| class.run.is_some()).map(|class| class.count).sum::<usize>();
        let most = finishing * self.cohorts.count * self.cohorts.cluster_queues.count;
        if stop == 0 || stop > most {
            problems.push(format!("stopAfterFinished: {stop}: must be 1 to {most}, the objects with a run time"));
        }
    }
}

fn count(problems: &mut Vec<String>, field: &str, value: usize) {
    if value == 0 || value > MAX_COUNT {
        problems.push(format!("{field}: {value}: must be 1 to {MAX_COUNT}"));
    }
}

fn cpu(problems: &mut Vec<String>, field: &str, value: f64) {
    if !(0.001..=1e9).contains(&value) {
        problems.push(format!("{field}: {value}: must be a number of CPUs from 0.001 to 1e9"));
    }
}

fn reference(problems: &mut Vec<String>, field: &str, name: &str, allowed: &[Class]) {
    if !allowed.iter().any(|class| class.name == name) {
        let names: Vec<&str> = allowed.iter().map(|class| class.name.as_str()).collect();
        let allowed =
            if names.is_empty() { "absent: no such class is listed before".to_owned() } else { names.join(" or ") };
        problems.push(format!("{field}: {name:?}: must be {allowed}"));
    }
}

fn is_dns_label(name: &str) -> bool {
    let is_inner = |byte: u8| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=40).contains(&name.len()) && name.bytes().all(is_inner) && !name.starts_with('-') && !name.ends_with('-')
}

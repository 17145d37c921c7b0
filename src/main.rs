//! The `sluice` command: a queue manager and a Ray operator for Kubernetes in one process.
//!
//! An upgrade of a queued RayService takes this way through the crates:
//!
//! 1. [`sluice_manager`](../sluice_manager/index.html) watches the API server, passes each change to the engine, and carries
//!    out what the engine returns. It is the shell: the client, the runtime and the clock are here.
//! 2. [`sluice_engine`](../sluice_engine/index.html) keeps the newest version of every object and decides which planner runs
//!    when. `Engine::step(now, inputs)` is its only entry point, and a pure function of its state and arguments.
//! 3. [`sluice_rayservice`](../sluice_rayservice/index.html) sees that the spec differs from the active RayCluster and creates
//!    a pending one, suspended.
//! 4. [`sluice_jobframework`](../sluice_jobframework/index.html) derives PodSets from both clusters and requests a workload
//!    slice that replaces the admitted one.
//! 5. [`sluice_queue`](../sluice_queue/index.html) admits that slice once the difference fits, and says until then what is
//!    short, by how much, and who holds it.
//! 6. [`sluice_jobframework`](../sluice_jobframework/index.html) opens the gate of the pending cluster (`spec.suspend: false`).
//! 7. [`sluice_raycluster`](../sluice_raycluster/index.html) creates its pods, never more than the slice covers.
//! 8. [`sluice_rayservice`](../sluice_rayservice/index.html) switches the traffic and deletes the old cluster.
//!
//! [`sluice_api`](../sluice_api/index.html) has the kinds and names, [`sluice_plan`](../sluice_plan/index.html) what a planner
//! may ask for, and [`sluice_inspect`](../sluice_inspect/index.html) what `sluice explain` and `sluice plan` compute on a copy
//! of the state. The crates that decide depend on no client, no runtime and no clock; `make tidy` checks it.

use std::process::ExitCode;

fn main() -> ExitCode {
    match sluice_cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sluice: {error}");
            ExitCode::FAILURE
        }
    }
}

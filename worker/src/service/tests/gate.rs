//! An engine whose steps end when the test says so.

use crossbeam_channel::{Receiver, Sender};

use super::*;

/// An executor that runs one step per permit and reports the sequences of each step.
struct Gated {
    sim: Sim,
    runs_ahead: bool,
    steps: Sender<Step>,
    permits: Receiver<Result<(), ExecutorError>>,
}

impl Executor for Gated {
    fn shape(&self) -> ExecutorShape {
        ExecutorShape { runs_ahead: self.runs_ahead, ..self.sim.shape() }
    }

    fn submit(&mut self, step: Step) -> Result<(), ExecutorError> {
        self.sim.submit(step.clone())?;
        // The test may have ended.
        let _ = self.steps.send(step);
        Ok(())
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        let permit = self.permits.recv().unwrap_or(Ok(()));
        let result = self.sim.wait();
        permit.and(result)
    }
}

pub struct Gate {
    pub service: EngineService,
    steps: Receiver<Step>,
    pub permits: Sender<Result<(), ExecutorError>>,
}

/// One step at a time.
pub fn gated(options: EngineOptions) -> Gate {
    start_gated(options, false)
}

/// A step is submitted while one runs.
pub fn gated_ahead(options: EngineOptions) -> Gate {
    start_gated(options, true)
}

fn start_gated(options: EngineOptions, runs_ahead: bool) -> Gate {
    let (steps_in, steps) = crossbeam_channel::bounded(10_000);
    let (permits, permits_out) = crossbeam_channel::bounded(10_000);
    let service = start(Box::new(Gated { sim: sim(), runs_ahead, steps: steps_in, permits: permits_out }), options);
    Gate { service, steps, permits }
}

impl Gate {
    /// The next step that was submitted.
    pub async fn step(&self) -> Step {
        let steps = self.steps.clone();
        let wait = move || steps.recv_timeout(Duration::from_secs(20)).expect("a step");
        tokio::task::spawn_blocking(wait).await.expect("no panic")
    }

    /// Waits until the busy engine has this many queued commands.
    pub async fn queued(&self, count: usize) {
        let commands = &self.service.commands;
        while commands.max_capacity() - commands.capacity() < count {
            tokio::task::yield_now().await;
        }
    }

    pub fn permit(&self) {
        self.permits.send(Ok(())).expect("room");
    }
}

//! An engine whose steps end when the test says so.

use crossbeam_channel::{Receiver, Sender};

use super::*;

/// An executor that runs one step per permit and reports the sequences of each step.
struct Gated {
    sim: Sim,
    steps: Sender<Step>,
    permits: Receiver<Result<(), ExecutorError>>,
}

impl Executor for Gated {
    fn shape(&self) -> ExecutorShape {
        self.sim.shape()
    }

    fn submit(&mut self, step: Step) -> Result<(), ExecutorError> {
        self.sim.submit(step.clone())?;
        // The test may have ended.
        let _ = self.steps.send(step);
        Ok(())
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        self.permits.recv().unwrap_or(Ok(()))?;
        self.sim.wait()
    }
}

pub struct Gate {
    pub service: EngineService,
    steps: Receiver<Step>,
    pub permits: Sender<Result<(), ExecutorError>>,
}

pub fn gated(options: EngineOptions) -> Gate {
    let (steps_in, steps) = crossbeam_channel::bounded(10_000);
    let (permits, permits_out) = crossbeam_channel::bounded(10_000);
    let service = start(Box::new(Gated { sim: sim(), steps: steps_in, permits: permits_out }), options);
    Gate { service, steps, permits }
}

impl Gate {
    /// The step that is executing.
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

//! The integration binary: tests the built `rein` and the repository from outside.

mod it {
    pub mod cli;
    pub mod engines;
    pub mod failover;
    pub mod fuzz;
    pub mod gguf;
    pub mod hedging;
    pub mod process;
    pub mod routing;
    pub mod serve;
    pub mod telemetry;
    pub mod tidy;
}

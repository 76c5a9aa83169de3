//! The one integration binary: the built `rein` and the repository itself, seen from outside.

mod it {
    pub mod cli;
    pub mod fuzz;
    pub mod process;
    pub mod serve;
    pub mod telemetry;
    pub mod tidy;
}

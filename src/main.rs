//! The binary `rein`: command line, config file and composition. It is the only crate that knows all the others.

mod api_server;
mod args;
mod banner;
mod capacity;
mod certs;
mod chat;
mod cluster;
mod config;
mod ending;
mod fingerprint;
mod gguf;
mod hub;
mod key;
mod listen;
mod load;
mod made_dir;
mod metrics;
#[cfg(test)]
#[path = "../tests/metrics_reference.rs"]
mod metrics_reference;
mod model_dir;
mod monitoring;
mod native;
mod option_values;
mod pooling;
mod reference;
mod score;
#[cfg(feature = "cuda")]
mod selftest;
mod serve;
mod stderr;
mod telemetry;
mod tls;
mod tools;

use std::io;
use std::process::ExitCode;

use args::Command;
use rein_measure::{bench, client, live, terminal, verify};

/// glibc's heap fragments while grammars come and go ([decision 8](../docs/decisions/0008-jemalloc.md)).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    #[cfg(feature = "cuda")]
    rein_kernels::cuda::separate_streams();
    stderr::tell_panics();
    let mut cli = match config::parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => return fail(error),
    };
    // Flushes traces when it is dropped, after the command.
    let _telemetry = match telemetry::init(cli.command.telemetry()) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(error),
    };
    if let Err(error) = hub::resolve(&mut cli.command) {
        return fail(error);
    }
    let result = match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Chat(args) => chat::chat(&args),
        Command::Run(args) => chat::run(&args),
        Command::Router(args) => cluster::router(*args),
        Command::Worker(args) => cluster::worker(*args),
        Command::Adapter(args) => cluster::adapter(*args),
        Command::Controller(args) => cluster::controller(*args),
        Command::Status(args) => cluster::status(*args),
        Command::Pull(args) => hub::pull(&args),
        Command::Drain(args) => cluster::drain(*args),
        Command::Capacity(args) => capacity::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Render(args) => tools::render::run(&args),
        Command::Accept(args) => tools::accept::run(&args),
        Command::Check(args) => match tools::check::run(&args) {
            Ok(verdict) => return verdict,
            Err(error) => Err(error),
        },
        Command::Formats(args) => tools::formats::run(&args),
        Command::Parse(args) => tools::parse::run(&args),
        Command::Alarms(args) => monitoring::alarms(&args),
        Command::Dashboard(args) => monitoring::dashboard(&args),
        Command::Certs(args) => certs::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Bench(options) => bench::run(*options),
        Command::Verify(options) => match verify::run(*options) {
            Ok(verdict) => return verdict,
            Err(error) => Err(error),
        },
        #[cfg(feature = "cuda")]
        Command::Selftest(args) => match selftest::run(&args) {
            Ok(verdict) => return verdict,
            Err(error) => Err(error),
        },
        #[cfg(not(feature = "cuda"))]
        Command::Selftest(_) => Err("selftest: this binary is for CPUs alone (built without the feature `cuda`): make serve ENGINE=cuda builds one for GPUs".into()),
        Command::Completions(args) => reference::completions(&args),
        Command::Man(args) => reference::man(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output closed it, as `head` does.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => fail(error),
    }
}

fn fail(error: Box<dyn std::error::Error>) -> ExitCode {
    stderr::error(format_args!("rein: {error}"));
    ExitCode::FAILURE
}

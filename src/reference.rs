//! Shell completions and man pages, from the declarations of the command line. Its tests hold the pages of the
//! documentation that describe the command line. It knows no option by name.

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::assert_current;

use std::error::Error;
use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<(), Box<dyn Error>> {
    // The generator panics on write errors, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rein", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// Writes a man page for `rein` and one for each command.
pub fn man(args: &ManArgs) -> Result<(), Box<dyn Error>> {
    let failed = |error: std::io::Error| format!("cannot write man pages to {}: {error}", args.dir.display());
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failed)?;
    Ok(())
}

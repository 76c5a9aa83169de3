//! Runs the checks of a section in this process, and writes what they find to standard output as lines of JSON. It ends
//! when the device is broken: the process that started it goes on with the next check in another one.

use std::error::Error;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};

use super::check::SectionCheck;
use super::report::ReportRow;
use crate::{ending, terminal};

/// What a process that runs checks writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckLine {
    /// A check begins.
    Begin {
        name: String,
        index: usize,
        of: usize,
    },
    Row(ReportRow),
    /// The check that began last has failed. `broken`: the device can no longer be used by this process.
    Failed {
        error: String,
        broken: bool,
    },
    /// All checks have ended.
    End,
}

impl CheckLine {
    fn write(&self) -> Result<(), Box<dyn Error>> {
        terminal::out(serde_json::to_string(self)?);
        Ok(())
    }
}

/// From check `first` on. `works`: whether the device can be used.
pub fn run(checks: Vec<SectionCheck>, first: usize, works: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    std::thread::spawn(|| {
        // Standard input ends with the process that started this one.
        while io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0) {}
        ending::kill();
    });
    let of = checks.len();
    for (index, SectionCheck { name, run }) in checks.into_iter().enumerate().skip(first) {
        CheckLine::Begin { name, index, of }.write()?;
        let mut unwritten = None;
        let mut sink = |row| unwritten = CheckLine::Row(row).write().err();
        let found = catch_unwind(AssertUnwindSafe(|| run(&mut sink)));
        unwritten.map_or(Ok(()), Err)?;
        let error = match found {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
                format!("panicked: {}", text.unwrap_or("no message"))
            }
        };
        let broken = !works();
        CheckLine::Failed { error, broken }.write()?;
        if broken {
            return Ok(());
        }
    }
    CheckLine::End.write()
}

//! Runs the checks of a section in other processes, so that a check which breaks the device, never ends or crashes
//! costs no other check. Such a check is repeated with each kernel waited for, to find the kernel that did it. This
//! module does not know what is checked.

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rein_kernels::cuda::LAST_KERNEL;
use rustix::process::{Pid, Signal, kill_process};

use super::child::CheckLine;
use super::report::ReportRow;
use crate::terminal;

/// A section begins no check after so many times the longest time of a check.
const CHECKS_OF_SECTION: u32 = 3;
/// Time for a process to end. The driver may have to stop a kernel first.
const END_TIME: Duration = Duration::from_secs(20);
/// Lines of a process that crashed which are kept.
const LAST_LINES: usize = 4;
const LINE_QUEUE: usize = 64;

/// How to run the checks of one section.
pub struct SectionProcess {
    /// Of a process that runs all its checks.
    pub arguments: Vec<OsString>,
    /// A check that reports nothing for this long counts as hung.
    pub check_time: Duration,
    /// For temporary files of the processes, which may be killed.
    pub scratch: ScratchDir,
}

/// Removed with all files when dropped.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let dir = std::env::temp_dir().join(format!("rein-selftest-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        Ok(ScratchDir(dir))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What is left is in the system's directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Why a process does not go on.
enum Stop {
    /// All checks have ended.
    End,
    /// The check with this index is what it could not go on after.
    Broken { check: StartedCheck, why: String },
    /// The section's time was over when this check began.
    Late(StartedCheck),
}

/// A check that has begun.
#[derive(Debug, Clone)]
struct StartedCheck {
    name: String,
    index: usize,
    of: usize,
}

impl SectionProcess {
    pub fn run(&self) -> Result<Vec<ReportRow>, Box<dyn Error>> {
        let (begin, time) = (Instant::now(), self.check_time * CHECKS_OF_SECTION);
        let (mut rows, mut next) = (Vec::new(), 0);
        loop {
            match self.follow(next, begin + time, &mut rows)? {
                Stop::End => return Ok(rows),
                Stop::Broken { check, why } => {
                    next = check.index + 1;
                    let again = self.again(check.index)?;
                    rows.push(ReportRow::new(check.name, format!("{why}; {again}"), false));
                    if next == check.of {
                        return Ok(rows);
                    }
                }
                Stop::Late(StartedCheck { name, index, of }) => {
                    let what = format!("{} of {of} checks were not run within {} s", of - index, time.as_secs());
                    rows.push(ReportRow::new(format!("{name} and later ones"), what, false));
                    return Ok(rows);
                }
            }
        }
    }

    /// Runs checks from `first` on.
    fn follow(&self, first: usize, until: Instant, rows: &mut Vec<ReportRow>) -> Result<Stop, Box<dyn Error>> {
        let mut process = CheckProcess::start(self, first, None)?;
        let mut now: Option<StartedCheck> = None;
        loop {
            let why = match process.next(self.check_time) {
                Ok(CheckLine::Begin { name, index, of }) => {
                    let check = StartedCheck { name, index, of };
                    if Instant::now() > until {
                        return Ok(Stop::Late(check));
                    }
                    now = Some(check);
                    continue;
                }
                Ok(CheckLine::Row(row)) => {
                    rows.push(row);
                    continue;
                }
                Ok(CheckLine::Failed { error, broken: false }) => {
                    let name = now.as_ref().map_or("", |check| &check.name);
                    rows.push(ReportRow::new(name, error, false));
                    continue;
                }
                Ok(CheckLine::End) => return Ok(Stop::End),
                Ok(CheckLine::Failed { error, broken: true }) => error,
                Err(why) => why,
            };
            let check = now.ok_or_else(|| format!("no check began: {why}"))?;
            return Ok(Stop::Broken { check, why });
        }
    }

    /// Repeats a check with each kernel waited for. What is found.
    fn again(&self, index: usize) -> Result<String, Box<dyn Error>> {
        let file = self.scratch.0.join("kernel");
        let mut process = CheckProcess::start(self, index, Some(&file))?;
        loop {
            match process.next(self.check_time) {
                Ok(CheckLine::Failed { error, .. }) => return Ok(format!("with each kernel waited for: {error}")),
                Ok(CheckLine::Begin { index: begun, .. }) if begun == index => {}
                Ok(CheckLine::Row(_)) => {}
                Ok(CheckLine::Begin { .. } | CheckLine::End) => {
                    return Ok("it ends if each kernel is waited for".into());
                }
                Err(why) => {
                    let kernel = std::fs::read_to_string(&file).ok().filter(|kernel| !kernel.is_empty());
                    let last = kernel.as_deref().unwrap_or("no kernel");
                    return Ok(format!("with each kernel waited for: {why}; the last was {last}"));
                }
            }
        }
    }
}

/// A process that runs checks; killed when dropped.
struct CheckProcess {
    id: Pid,
    lines: Receiver<CheckLine>,
    ended: Receiver<io::Result<ExitStatus>>,
    /// How it ended, once that was received.
    status: Option<String>,
    /// The last lines of its standard error.
    errors: Option<JoinHandle<VecDeque<String>>>,
    /// It ends when this is closed, so that it does not outlive this process.
    _input: Option<ChildStdin>,
}

impl CheckProcess {
    /// `last_kernel`: each kernel is waited for and noted in this file.
    fn start(of: &SectionProcess, first: usize, last_kernel: Option<&PathBuf>) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&of.arguments).args(["--from-check", &first.to_string()]).env("TMPDIR", &of.scratch.0);
        if let Some(file) = last_kernel {
            command.env("CUDA_LAUNCH_BLOCKING", "1").env(LAST_KERNEL, file);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (send, lines) = sync_channel(LINE_QUEUE);
        std::thread::spawn(move || {
            for line in lines_of(output) {
                match serde_json::from_str(&line) {
                    // The receiver is gone if the process is to be killed.
                    Ok(line) => drop(send.send(line)),
                    Err(_) => terminal::err(line),
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut last = VecDeque::new();
            for line in lines_of(errors) {
                terminal::err(&line);
                last.truncate(LAST_LINES - 1);
                last.push_front(line);
            }
            last
        });
        let id = Pid::from_child(&child);
        let (end, ended) = sync_channel(1);
        // The receiver is gone if the process could not be ended.
        std::thread::spawn(move || drop(end.send(child.wait())));
        Ok(CheckProcess { id, lines, ended, status: None, errors: Some(errors), _input: input })
    }

    /// The next line, or why there is none.
    fn next(&mut self, time: Duration) -> Result<CheckLine, String> {
        self.lines.recv_timeout(time).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("hangs: no result for {} s", time.as_secs_f64()),
            RecvTimeoutError::Disconnected => {
                let status = self.end(false).or_else(|| self.end(true));
                let status = status.unwrap_or_else(|| "it cannot be ended".into());
                let last = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
                let last = last.into_iter().rev().fold(String::new(), |text, line| text + " / " + &line);
                format!("its process ended ({status}){last}")
            }
        })
    }

    /// Waits for the end of the process, which is killed before. None: it does not end.
    fn end(&mut self, kill: bool) -> Option<String> {
        if self.status.is_none() {
            if kill {
                // Fails only if it has ended.
                let _ = kill_process(self.id, Signal::KILL);
            }
            let ended = self.ended.recv_timeout(END_TIME).ok()?;
            self.status = Some(ended.map_or_else(|error| error.to_string(), |status| status.to_string()));
        }
        self.status.clone()
    }
}

impl Drop for CheckProcess {
    fn drop(&mut self) {
        if self.end(true).is_none() {
            terminal::err("rein: a process of this selftest cannot be ended");
        }
    }
}

fn lines_of(stream: Option<impl Read>) -> impl Iterator<Item = String> {
    stream.into_iter().flat_map(|stream| BufReader::new(stream).lines().map_while(Result::ok))
}

//! The end of this process where it may not end by itself: a GPU's driver may wait at the exit of a process for a
//! kernel that never ends.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// Time that a process has for its exit.
pub const EXIT_TIME: Duration = Duration::from_secs(10);

/// Ends this process at once, as SIGKILL does.
pub fn kill() {
    // A process may always signal itself.
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Ends this process after a while, unless it has ended before.
pub fn kill_after(time: Duration) {
    std::thread::spawn(move || {
        let (_sender, never) = sync_channel::<()>(0);
        // Always a timeout.
        let _ = never.recv_timeout(time);
        kill();
    });
}

/// Ends this process, as SIGTERM does, when its standard input is closed.
pub fn with_stdin() {
    std::thread::spawn(|| {
        // An input that cannot be read has ended, too.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = kill_process(getpid(), Signal::TERM);
    });
}

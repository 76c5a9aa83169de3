//! What a router counts and reports of its engines.

use std::{fmt::Write, sync::atomic::AtomicU64};

use rein_proto::{
    internal::EngineStats,
    stats::{NUMBERS, Number, NumberKind},
};

use crate::metrics::{escaped, write_counters};

#[derive(Default)]
pub struct FleetMetrics {
    pub parked: AtomicU64,
    pub resumed: AtomicU64,
    pub resume_failed: AtomicU64,
}

impl FleetMetrics {
    pub fn write(&self, out: &mut String) {
        write_counters(
            out,
            [
                (
                    "rein_parked_total",
                    "Sequences that gave up their engine because their client did not read.",
                    &self.parked,
                ),
                ("rein_resumed_total", "Sequences that went on after their engine was lost.", &self.resumed),
                (
                    "rein_resume_failed_total",
                    "Sequences that lost their engine and found no other.",
                    &self.resume_failed,
                ),
            ],
        );
    }
}

/// What `/metrics` says of one engine.
pub struct EngineReport {
    pub model: String,
    /// The group that it leads; a number where there are none.
    pub engine: String,
    pub epoch: u64,
    pub stats: Option<EngineStats>,
}

/// How many engines of a model have each standing.
pub struct PoolReport {
    pub model: String,
    pub format: &'static str,
    pub standings: [(&'static str, usize); 3],
    pub kinds: usize,
}

pub fn write_pools(out: &mut String, pools: &[PoolReport]) {
    let help = "Engines of a model, by what membership says of them.";
    let _ = writeln!(out, "# HELP rein_engines {help}\n# TYPE rein_engines gauge");
    for PoolReport { model, standings, .. } in pools {
        for (standing, count) in standings {
            let _ = writeln!(out, "rein_engines{{model=\"{}\",standing=\"{standing}\"}} {count}", escaped(model));
        }
    }
    let help = "Kinds of a model's engines (checkpoint, types, group size); more than 1: answers depend on where they are computed.";
    let _ = writeln!(out, "# HELP rein_engine_kinds {help}\n# TYPE rein_engine_kinds gauge");
    for PoolReport { model, kinds, .. } in pools {
        let _ = writeln!(out, "rein_engine_kinds{{model=\"{}\"}} {kinds}", escaped(model));
    }
}

pub fn write_engines(out: &mut String, engines: &[EngineReport]) {
    let label =
        |report: &EngineReport| format!("{{model=\"{}\",engine=\"{}\"}}", escaped(&report.model), report.engine);
    let _ = writeln!(out, "# HELP rein_engine_up Whether the engine answers.\n# TYPE rein_engine_up gauge");
    for report in engines {
        let _ = writeln!(out, "rein_engine_up{} {}", label(report), u8::from(report.stats.is_some()));
    }
    let help = "The placement epoch of the engine's group.";
    let _ = writeln!(out, "# HELP rein_engine_epoch {help}\n# TYPE rein_engine_epoch gauge");
    for report in engines {
        let _ = writeln!(out, "rein_engine_epoch{} {}", label(report), report.epoch);
    }
    for Number { name, kind, help, read } in NUMBERS {
        let (name, kind) = match kind {
            NumberKind::Gauge => (name.to_owned(), "gauge"),
            NumberKind::Counter => (format!("{name}_total"), "counter"),
        };
        let _ = writeln!(out, "# HELP rein_engine_{name} {help}.\n# TYPE rein_engine_{name} {kind}");
        for report in engines {
            if let Some(stats) = &report.stats {
                let _ = writeln!(out, "rein_engine_{name}{} {}", label(report), read(stats));
            }
        }
    }
}

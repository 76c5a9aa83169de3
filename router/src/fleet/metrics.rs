//! Metrics of a router's engines and of sequences that change engines.

use std::fmt;

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use rein_proto::internal::EngineStats;

use crate::metrics::Samples;

#[derive(Default)]
pub struct FleetMetrics {
    pub parked: Counter,
    pub resumed: Counter,
    pub resume_failed: Counter,
}

impl FleetMetrics {
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            (
                "rein_parked",
                "Sequences that gave up their engine because their client had not read for 5 s. They resume when it reads",
                &self.parked,
            ),
            (
                "rein_resumed",
                "Sequences that resumed on another engine after theirs was lost; clients see a pause",
                &self.resumed,
            ),
            (
                "rein_resume_failed",
                "Sequences that lost their engine and did not get another one; the request failed",
                &self.resume_failed,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
    }
}

/// The metrics of one engine.
pub struct EngineReport {
    pub model: String,
    /// The group that it leads, or a number in `rein serve`, which has no groups.
    pub group: String,
    pub epoch: u64,
    pub max_sequences: Option<u32>,
    pub stats: Option<EngineStats>,
}

/// How many engines of a model have each standing.
pub struct PoolReport {
    pub model: String,
    pub standings: [(&'static str, usize); 3],
    pub kinds: usize,
}

pub fn write(samples: &mut Samples<'_>, pools: &[PoolReport], engines: &[EngineReport]) -> fmt::Result {
    let standings = |pool: &PoolReport| {
        let model = pool.model.clone();
        pool.standings.map(|(standing, count)| ([("model", model.clone()), ("standing", standing.to_owned())], count))
    };
    let help = "Engines by standing: `serving`, `draining`, or `unlisted` (membership no longer lists \
        the engine; it is the last choice for 5 minutes)";
    samples.gauge("rein_engines", help, pools.iter().flat_map(standings))?;
    let help = "Kinds of the model's engines: checkpoint, types, block size, context, instruction set, group size. If there \
        are several, answers depend on the engine";
    let kinds = pools.iter().map(|pool| ([("model", pool.model.as_str())], pool.kinds));
    samples.gauge("rein_engine_kinds", help, kinds)?;
    let labels = |report: &EngineReport| [("model", report.model.clone()), ("engine", report.group.clone())];
    let help = "1 if the engine answers. `engine` is its group, or a number in `rein serve`";
    let up = engines.iter().map(|report| (labels(report), u32::from(report.stats.is_some())));
    samples.gauge("rein_engine_up", help, up)?;
    let help = "Epoch of the engine's group, which grows each time the group is reformed";
    samples.gauge("rein_engine_epoch", help, engines.iter().map(|report| (labels(report), report.epoch)))?;
    let help = "Sequences that the engine computes at once (`--max-sequences`); further ones wait in its queue";
    let most = engines.iter().filter_map(|report| Some((labels(report), report.max_sequences?)));
    samples.gauge("rein_engine_max_sequences", help, most)?;
    samples.engines("rein_engine", || engines.iter().filter_map(|report| Some((labels(report), report.stats?))))
}

//! Primitives for metrics: Prometheus text, histograms of durations, and metrics that are computed at each scrape. It
//! does not know any metric: each folder declares its own.

use std::{fmt, time::Duration};

pub use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, prometheus_text,
    },
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram},
    registry::Registry,
};
use rein_proto::{
    internal::EngineStats,
    stats::{NUMBERS, Number, NumberKind},
};

/// Upper bounds of the buckets of every histogram, in seconds.
const BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// A histogram of durations. Clones share their counts.
#[derive(Debug, Clone)]
pub struct Durations(Histogram);

impl Default for Durations {
    fn default() -> Self {
        Durations(Histogram::new(BUCKETS))
    }
}

impl Durations {
    pub fn observe(&self, time: Duration) {
        self.0.observe(time.as_secs_f64());
    }

    pub fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.0.clone());
    }
}

/// For metrics without labels.
pub const NO_LABELS: [(&str, &str); 0] = [];

/// All metrics of a registry.
pub fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string does not fail, and no metric returns an error.
    let _ = prometheus_text::encode(&mut text, registry);
    text
}

/// Registers metrics that `write` computes at each scrape.
pub fn on_scrape(registry: &mut Registry, write: impl Fn(&mut Samples<'_>) -> fmt::Result + Send + Sync + 'static) {
    registry.register_collector(Box::new(OnScrape(write)));
}

struct OnScrape<F>(F);

impl<F> fmt::Debug for OnScrape<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnScrape")
    }
}

impl<F: Fn(&mut Samples<'_>) -> fmt::Result + Send + Sync + 'static> Collector for OnScrape<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Samples(encoder))
    }
}

/// Writes one metric after the other. A metric without samples is left out.
pub struct Samples<'a>(DescriptorEncoder<'a>);

impl Samples<'_> {
    pub fn gauge<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let samples = samples.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.metric(name, help, MetricType::Gauge, samples)
    }

    /// `_total` is added to the name.
    pub fn counter<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let samples = samples.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.metric(name, help, MetricType::Counter, samples)
    }

    /// The numbers that engines report. `prefix` is prepended to their names.
    pub fn engines<L: EncodeLabelSet, I: IntoIterator<Item = (L, EngineStats)>>(
        &mut self,
        prefix: &str,
        engines: impl Fn() -> I,
    ) -> fmt::Result {
        for Number { name, kind, help, read } in NUMBERS {
            let samples = engines().into_iter().map(|(labels, stats)| (labels, read(&stats)));
            let name = format!("{prefix}_{name}");
            match kind {
                NumberKind::Gauge => self.gauge(&name, help, samples)?,
                NumberKind::Counter => self.counter(&name, help, samples)?,
            }
        }
        Ok(())
    }

    pub fn metric<L: EncodeLabelSet, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (L, M)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        // `Registry::register` adds the full stop; this method does not.
        let mut encoder = self.0.encode_descriptor(name, &format!("{help}."), None, kind)?;
        samples.try_for_each(|(labels, metric)| metric.encode(encoder.encode_family(&labels)?))
    }
}

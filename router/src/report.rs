//! `/metrics`: what each folder counts, in one text.

use crate::{
    fleet::metrics::{EngineReport, FleetMetrics, PoolReport, write_engines, write_pools},
    request::metrics::RequestMetrics,
    state::Core,
    surface_metrics::SurfaceMetrics,
};

impl Core {
    /// The answer of `/metrics`.
    pub async fn report(&self) -> String {
        let (mut engines, mut pools) = (Vec::new(), Vec::new());
        for model in self.models().iter() {
            let all = model.pool.stats().await;
            engines.extend(all.into_iter().map(|(engine, stats)| {
                let (engine, epoch) = (engine.group.clone(), rein_control_plane::epoch::number(engine.epoch));
                EngineReport { model: model.name().into(), engine, epoch, stats }
            }));
            let (standings, kinds) = (model.pool.standings(), model.pool.kinds());
            pools.push(PoolReport { model: model.name().into(), format: model.format.name, standings, kinds });
        }
        let mut report = compose(&self.surfaces, &self.metrics, &self.fleet_metrics, &pools, &engines);
        self.admission.write_metrics(&mut report);
        self.effort.write_metrics(&mut report);
        if let Some(keys) = &self.config.keys {
            keys.write_metrics(&mut report);
        }
        report.push_str(&self.config.process_metrics.write());
        report
    }
}

fn compose(
    surfaces: &SurfaceMetrics,
    metrics: &RequestMetrics,
    fleet_metrics: &FleetMetrics,
    pools: &[PoolReport],
    engines: &[EngineReport],
) -> String {
    let mut out = String::new();
    surfaces.write(&mut out);
    metrics.write(&mut out, pools.iter().map(|pool| (pool.model.as_str(), pool.format)));
    fleet_metrics.write(&mut out);
    write_pools(&mut out, pools);
    write_engines(&mut out, engines);
    out
}

#[cfg(test)]
mod tests;

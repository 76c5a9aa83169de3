//! The text of `/metrics`: the registered metrics of all folders, and those of engines, which are asked at each scrape.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::{
    fleet::metrics::{EngineReport, PoolReport, write},
    metrics::{on_scrape, text},
    request::metrics::write_prompt_caches,
    state::RouterState,
};

impl RouterState {
    /// The answer of `/metrics`.
    pub async fn report(self: &Arc<Self>) -> String {
        let (mut engines, mut pools, mut caches) = (Vec::new(), Vec::new(), Vec::new());
        for model in self.models().iter() {
            let all = model.pool.stats().await;
            engines.extend(all.into_iter().map(|(engine, stats)| {
                let (group, epoch) = (engine.group.clone(), rein_control_plane::epoch::number(engine.epoch));
                EngineReport { model: model.name().into(), group, epoch, max_sequences: engine.max_sequences(), stats }
            }));
            caches.push((model.name().to_owned(), model.text.prompt_cache.stats()));
            self.metrics.outcomes.add_model(model.name(), model.format.name);
            let (standings, kinds) = (model.pool.standings(), model.pool.kinds());
            pools.push(PoolReport { model: model.name().into(), standings, kinds });
        }
        let (mut asked, state, names) = (Registry::default(), self.clone(), self.model_names());
        on_scrape(&mut asked, move |samples| {
            state.demand.write(samples, names.iter().cloned())?;
            write(samples, &pools, &engines)?;
            write_prompt_caches(samples, &caches)
        });
        text(&self.registry) + &text(&asked)
    }
}

#[cfg(test)]
mod tests;

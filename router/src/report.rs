//! The text of `/metrics`: the registered metrics of all folders, and those of engines, which are asked at each scrape.

use prometheus_client::registry::Registry;

use crate::{
    fleet::metrics::{EngineReport, PoolReport, write},
    metrics::{on_scrape, text},
    request::metrics::write_prompt_caches,
    state::RouterState,
};

impl RouterState {
    /// The answer of `/metrics`.
    pub async fn report(&self) -> String {
        let (mut engines, mut pools, mut caches) = (Vec::new(), Vec::new(), Vec::new());
        for model in self.models().iter() {
            let all = model.pool.stats().await;
            engines.extend(all.into_iter().map(|(engine, stats)| {
                let (engine, epoch) = (engine.group.clone(), rein_control_plane::epoch::number(engine.epoch));
                EngineReport { model: model.name().into(), engine, epoch, stats }
            }));
            caches.push((model.name().to_owned(), model.text.prompt_cache.stats()));
            self.metrics.outcomes.add_model(model.name(), model.format.name);
            let (standings, kinds) = (model.pool.standings(), model.pool.kinds());
            pools.push(PoolReport { model: model.name().into(), standings, kinds });
        }
        let mut asked = Registry::default();
        on_scrape(&mut asked, move |samples| {
            write(samples, &pools, &engines)?;
            write_prompt_caches(samples, &caches)
        });
        text(&self.registry) + &text(&asked)
    }
}

#[cfg(test)]
mod tests;

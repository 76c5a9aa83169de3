//! `rein controller`.

use std::error::Error;
use std::time::Duration;

use rein_control_plane::decide::Settings;
use rein_control_plane::rebalance::Rebalance;
use rein_control_plane::{ControllerOptions, controller};

use super::{id, keys, store};
use crate::args::ControllerArgs;
use crate::listen::StopSignals;

pub fn run(args: ControllerArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    if !(args.rebalance_above > 1.0 && args.rebalance_above.is_finite()) {
        return Err(format!("--rebalance-above: must be more than 1, not {}", args.rebalance_above).into());
    }
    let every = Duration::from_secs(args.rebalance_every);
    let rebalance = (!every.is_zero()).then_some(Rebalance { above: args.rebalance_above, every });
    let settings = Settings { spares: args.spares, rebalance };
    let options = ControllerOptions { id: id(&args.id, std::process::id())?, settings };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        println!("rein: controller {} of cluster {}", options.id, args.cluster.cluster);
        let (leave, left) = tokio::sync::oneshot::channel::<()>();
        let mut running = tokio::spawn(controller::run(store, keys, options, async {
            // The sender is kept until then.
            let _ = left.await;
        }));
        tokio::select! {
            ended = &mut running => ended?,
            _ = stop.next() => {
                drop(leave);
                running.await?;
            }
        }
        println!("rein: stopped");
        Ok(())
    })
}

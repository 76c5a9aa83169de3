//! The kinds of devices that ranks compute on. Only this file and `ModelLoader` name them.

use rein_control_plane::RankPlacement;
use rein_kernels::Backend;
use rein_kernels::cpu::{Cpu, CpuDevices};

use super::ModelOptions;
use crate::model::Network;

/// The devices of this process.
pub enum AnyDevices {
    Cpu(CpuDevices),
}

impl AnyDevices {
    pub fn new(options: &ModelOptions) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        AnyDevices::Cpu(CpuDevices { threads: options.threads.unwrap_or(cores) })
    }
}

/// A rank's weights on their device, which outlive its group.
pub enum Resident {
    Cpu(DeviceResident<Cpu>),
}

/// A rank's weights on one kind of device.
pub struct DeviceResident<B: Backend> {
    pub network: Network<B>,
    /// The size of the group, on which a rank's weights depend.
    pub ranks: usize,
    /// Index of the device.
    pub device: usize,
}

/// Takes the weights back when a group ends. Their owner may be gone.
pub type Home<B> = std::sync::Arc<dyn Fn(DeviceResident<B>) + Send + Sync>;

impl<B: Backend> DeviceResident<B> {
    pub fn take(residents: &mut Vec<Self>, rank: &RankPlacement, ranks: usize) -> Option<Self> {
        // Experts may have moved; the missing ones are loaded.
        let holds = |resident: &Self| {
            let known = resident.network.rank();
            let same = (known.rank, &known.heads, &known.kv_heads) == (rank.rank, &rank.heads, &rank.kv_heads);
            same && resident.ranks == ranks
        };
        residents.iter().position(holds).map(|i| residents.swap_remove(i))
    }
}

/// The device of each rank of this process: that of its weights, or else the first that has none.
pub fn assign(residents: &[Option<usize>]) -> Vec<usize> {
    let mut free = (0..).filter(|device| !residents.contains(&Some(*device)));
    residents.iter().map(|device| device.or_else(|| free.next()).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests;

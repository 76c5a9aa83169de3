//! Cosines and sines of rotary embeddings, computed on the host as the CPU backend does. It does not know steps.

use super::{CudaDevice, DeviceBuffer, Result};
use crate::backend::RopeSpec;

/// Positions of the first tables.
const FIRST: usize = 4096;

#[derive(Debug)]
struct Table {
    spec: RopeSpec,
    values: DeviceBuffer,
}

/// One table for each kind of rotation, for all positions up to some limit.
#[derive(Debug, Default)]
pub(super) struct DeviceAngles {
    tables: Vec<Table>,
    positions: usize,
}

fn upload(device: &CudaDevice, spec: &RopeSpec, positions: usize) -> Result<DeviceBuffer> {
    let mut values = Vec::with_capacity(positions * spec.dims);
    (0..positions as u32).for_each(|position| spec.push_angles(position, &mut values));
    let buffer = device.allocate(size_of_val(values.as_slice()))?;
    buffer.write(device, 0, &values)?;
    Ok(buffer)
}

impl DeviceAngles {
    /// Whether `cover` would move tables.
    pub fn wants_room(&self, position: usize) -> bool {
        position >= self.positions && !self.tables.is_empty()
    }

    /// Makes room for a position. Whether tables have moved.
    pub fn cover(&mut self, device: &CudaDevice, position: usize) -> Result<bool> {
        if position < self.positions {
            return Ok(false);
        }
        self.positions = (position + 1).next_power_of_two().max(FIRST);
        for table in &mut self.tables {
            table.values = upload(device, &table.spec, self.positions)?;
        }
        Ok(!self.tables.is_empty())
    }

    /// The address of the table of a rotation, which is made if it is new.
    pub fn get(&mut self, device: &CudaDevice, spec: &RopeSpec) -> Result<u64> {
        spec.assert_frequencies();
        if let Some(table) = self.tables.iter().find(|table| table.spec.same_angles(spec)) {
            return Ok(table.values.address());
        }
        let values = upload(device, spec, self.positions)?;
        let address = values.address();
        self.tables.push(Table { spec: spec.clone(), values });
        Ok(address)
    }
}

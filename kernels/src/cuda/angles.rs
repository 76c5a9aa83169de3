//! Cosines and sines of rotary embeddings, computed on the host as the CPU backend does. It does not know steps.

use super::{CudaDevice, DeviceBuffer, Result};
use crate::backend::RopeSpec;

/// Positions of the first tables.
const FIRST: usize = 4096;

#[derive(Debug)]
struct Table {
    inv_freq: Vec<f64>,
    magnitude: f32,
    values: DeviceBuffer,
}

/// One table for each kind of rotation, for all positions up to some limit.
#[derive(Debug, Default)]
pub(super) struct DeviceAngles {
    tables: Vec<Table>,
    positions: usize,
}

fn upload(device: &CudaDevice, inv_freq: &[f64], magnitude: f32, positions: usize) -> Result<DeviceBuffer> {
    let mut values = Vec::with_capacity(positions * 2 * inv_freq.len());
    for position in 0..positions {
        // The angle is rounded to f32 as in transformers, where frequencies and positions are f32 tensors.
        let angle = |f: &f64| f64::from(*f as f32 * position as f32);
        values.extend(inv_freq.iter().map(|f| angle(f).cos() as f32 * magnitude));
        values.extend(inv_freq.iter().map(|f| angle(f).sin() as f32 * magnitude));
    }
    let buffer = device.allocate(size_of_val(values.as_slice()))?;
    buffer.write(device, 0, &values)?;
    Ok(buffer)
}

impl DeviceAngles {
    /// Makes room for a position. Whether tables have moved.
    pub fn cover(&mut self, device: &CudaDevice, position: usize) -> Result<bool> {
        if position < self.positions {
            return Ok(false);
        }
        self.positions = (position + 1).next_power_of_two().max(FIRST);
        for table in &mut self.tables {
            table.values = upload(device, &table.inv_freq, table.magnitude, self.positions)?;
        }
        Ok(!self.tables.is_empty())
    }

    /// The address of the table of a rotation, which is made if it is new.
    pub fn get(&mut self, device: &CudaDevice, spec: &RopeSpec) -> Result<u64> {
        assert_eq!(spec.inv_freq.len(), spec.dims / 2, "rope: dims / 2 frequencies");
        let fits = |table: &&Table| table.inv_freq == spec.inv_freq && table.magnitude == spec.magnitude;
        if let Some(table) = self.tables.iter().find(fits) {
            return Ok(table.values.address());
        }
        let values = upload(device, &spec.inv_freq, spec.magnitude, self.positions)?;
        let address = values.address();
        self.tables.push(Table { inv_freq: spec.inv_freq.clone(), magnitude: spec.magnitude, values });
        Ok(address)
    }
}

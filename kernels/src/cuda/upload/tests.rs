use super::*;
use crate::cuda::Driver;

/// Bytes of a weight. Those of a pool are not few.
const BYTES: usize = 256 << 10;
const COUNT: usize = 3 * LANES + 1;

fn device() -> CudaDevice {
    Driver::open().and_then(|driver| driver.device(0)).expect("a device")
}

/// The weight `i`, in memory of the pool or of its own.
fn weight(pool: Option<&Arc<HostPool>>, i: usize) -> HostBuffer<u8> {
    let byte = |at: usize| (at * (2 * i + 1) / 7) as u8;
    let mut buffer = pool.map_or_else(|| vec![0; BYTES].into(), |pool| pool.take(BYTES).expect("memory"));
    buffer.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    buffer
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn memory_of_the_pool_is_used_again_after_its_copy() {
    let (device, ring) = (device(), RefCell::default());
    let (writer, pool) = (WeightWriter { device: &device, ring: &ring }, ring.borrow_mut().pool(&device));
    let to = device.allocate(COUNT * BYTES).expect("memory");
    let mut addresses = std::collections::HashSet::new();
    for i in 0..COUNT {
        // Some go by the slots.
        let weight = weight((i % 5 != 4).then_some(&pool), i);
        if i % 5 != 4 {
            addresses.insert(weight.as_ptr().addr());
        }
        writer.write_buffer(&to, i * BYTES, weight).expect("written");
    }
    writer.wait().expect("copied");
    let all = to.read::<u8>(&device, COUNT * BYTES).expect("read");
    for (i, found) in all.chunks_exact(BYTES).enumerate() {
        assert!(*found == weight(None, i)[..], "weight {i}");
    }
    assert!(addresses.len() <= LANES + 1, "{} buffers", addresses.len());
    ring.borrow_mut().finish().expect("no copy is left");
    assert!(ring.borrow().is_empty());
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn the_tiled_layout_is_that_of_the_weight_wherever_it_was_read() {
    let (mut device, ring) = (device(), RefCell::default());
    assert!(device.load_fast().expect("kernels"), "only devices of compute capability 9.0 have the layout");
    let (writer, pool) = (WeightWriter { device: &device, ring: &ring }, ring.borrow_mut().pool(&device));
    let to = device.allocate(2 * COUNT * BYTES).expect("memory");
    for i in 0..2 * COUNT {
        let weight = weight((i % 2 == 0).then_some(&pool), i / 2);
        // SAFETY: `to` has room for all.
        unsafe { writer.write_tiled(to.address() + (i * BYTES) as u64, vec![weight], [1024, 512]) }.expect("written");
    }
    writer.wait().expect("copied");
    let all = to.read::<u8>(&device, 2 * COUNT * BYTES).expect("read");
    for (i, pair) in all.chunks_exact(2 * BYTES).enumerate() {
        assert!(pair[..BYTES] == pair[BYTES..], "weight {i}");
    }
}

//! Memory of the host that weights are read into, used again for the next ones. It does not know what is read.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::bf16;
use half::vec::HalfBitsVecExt;

use crate::error::Result;

/// Buffers of fewer bytes are allocated each time; the allocator has them at hand.
const LEAST_KEPT: usize = 64 << 10;
/// Buffers of more bytes (embeddings, heads) are allocated each time, so that a pool stays small.
const MOST_KEPT: usize = 32 << 20;

/// Numbers that any bytes make. Those of checkpoints are little-endian, as all hosts are that Rein runs on.
pub trait HostNumber: Copy + Debug + Send + Sync {
    fn zeros(count: usize) -> Vec<Self>;
}

impl HostNumber for u8 {
    fn zeros(count: usize) -> Vec<u8> {
        vec![0; count]
    }
}

impl HostNumber for bf16 {
    /// The bits come from the allocator as zeros, so nothing is written.
    fn zeros(count: usize) -> Vec<bf16> {
        vec![0u16; count].reinterpret_into()
    }
}

/// Memory of a pool. Its address is a multiple of eight.
pub trait PoolMemory: Debug + Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Whether the device copies from it without the driver's help.
    fn is_pinned(&self) -> bool;
}

impl PoolMemory for Vec<u64> {
    fn bytes(&self) -> &[u8] {
        // SAFETY: words have no padding, and live as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of_val(&**self)) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; any bytes make words.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), size_of_val(&**self)) }
    }

    fn is_pinned(&self) -> bool {
        false
    }
}

type Allocate = dyn Fn(usize) -> Result<Box<dyn PoolMemory>> + Send + Sync;

/// Buffers for those who read weights, on any thread. A pool has as many as were taken at the same time.
pub struct HostPool {
    allocate: Box<Allocate>,
    free: Mutex<Vec<Box<dyn PoolMemory>>>,
}

impl Debug for HostPool {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("HostPool").field("free", &self.free().len()).finish_non_exhaustive()
    }
}

impl HostPool {
    pub fn plain() -> Arc<HostPool> {
        HostPool::new(|bytes| Ok(Box::new(vec![0u64; bytes.div_ceil(8)])))
    }

    pub fn new(allocate: impl Fn(usize) -> Result<Box<dyn PoolMemory>> + Send + Sync + 'static) -> Arc<HostPool> {
        Arc::new(HostPool { allocate: Box::new(allocate), free: Mutex::default() })
    }

    fn free(&self) -> MutexGuard<'_, Vec<Box<dyn PoolMemory>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer for so many numbers, to be filled.
    pub fn take<T: HostNumber>(self: &Arc<Self>, count: usize) -> Result<HostBuffer<T>> {
        let bytes = count * size_of::<T>();
        if !(LEAST_KEPT..=MOST_KEPT).contains(&bytes) {
            return Ok(T::zeros(count).into());
        }
        // Sizes are few, so that one matrix takes what another one had.
        let size = bytes.next_power_of_two();
        let kept = {
            let mut free = self.free();
            let place = free.iter().position(|memory| memory.bytes().len() == size);
            place.map(|place| free.swap_remove(place))
        };
        let memory = kept.map_or_else(|| (self.allocate)(size), Ok)?;
        assert!(memory.bytes().as_ptr().addr().is_multiple_of(8), "memory of a pool begins at a multiple of eight");
        let memory = KeptMemory { memory: Some(memory), pool: Arc::clone(self) };
        Ok(HostBuffer(Held::Kept(memory, count, PhantomData)))
    }
}

/// Memory that returns to its pool.
#[derive(Debug)]
pub struct KeptMemory {
    /// None while it is dropped.
    memory: Option<Box<dyn PoolMemory>>,
    pool: Arc<HostPool>,
}

impl KeptMemory {
    pub fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.bytes())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| memory.bytes_mut())
    }

    fn is_pinned(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_pinned())
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        self.pool.free().extend(self.memory.take());
    }
}

#[derive(Debug)]
enum Held<T> {
    Own(Vec<T>),
    /// The first numbers of it.
    Kept(KeptMemory, usize, PhantomData<T>),
}

/// Numbers of a weight, in memory of their own or of a pool.
#[derive(Debug)]
pub struct HostBuffer<T: HostNumber>(Held<T>);

impl<T: HostNumber> HostBuffer<T> {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let numbers: &mut [T] = self;
        // SAFETY: the trait's numbers have no padding, and any bytes make them.
        unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
    }

    /// Memory that a device copies from, which has the numbers at its start; or the numbers.
    pub fn into_pinned(self) -> std::result::Result<KeptMemory, HostBuffer<T>> {
        match self.0 {
            Held::Kept(memory, ..) if memory.is_pinned() => Ok(memory),
            held => Err(HostBuffer(held)),
        }
    }

    pub fn into_vec(self) -> Vec<T> {
        match self.0 {
            Held::Own(numbers) => numbers,
            held => HostBuffer(held).to_vec(),
        }
    }

    /// Appends numbers.
    pub fn append(&mut self, more: HostBuffer<T>) {
        let mut all = std::mem::take(self).into_vec();
        all.extend_from_slice(&more);
        *self = all.into();
    }
}

impl<T: HostNumber> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Held::Own(numbers) => numbers,
            Held::Kept(memory, count, _) => {
                let bytes = &memory.bytes()[..count * size_of::<T>()];
                // SAFETY: so many bytes, which make numbers of such a type; `take` has checked their alignment.
                unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), *count) }
            }
        }
    }
}

impl<T: HostNumber> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Held::Own(numbers) => numbers,
            Held::Kept(memory, count, _) => {
                let bytes = &mut memory.bytes_mut()[..*count * size_of::<T>()];
                // SAFETY: as in `deref`.
                unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), *count) }
            }
        }
    }
}

impl<T: HostNumber> Default for HostBuffer<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<T: HostNumber> From<Vec<T>> for HostBuffer<T> {
    fn from(numbers: Vec<T>) -> Self {
        HostBuffer(Held::Own(numbers))
    }
}

impl<T: HostNumber> FromIterator<T> for HostBuffer<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        Vec::from_iter(numbers).into()
    }
}

impl<T: HostNumber> IntoIterator for HostBuffer<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.into_vec().into_iter()
    }
}

impl<T: HostNumber> Clone for HostBuffer<T> {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

#[cfg(test)]
mod tests;

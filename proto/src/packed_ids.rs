//! Token ids as bytes: four for each id, little-endian. Unlike protobuf's integers, they are copied as a whole.

use prost::bytes::Bytes;

const ID_BYTES: usize = size_of::<u32>();

struct Ids(Vec<u32>);

impl AsRef<[u8]> for Ids {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// The bytes of these ids, without a copy.
pub fn pack(mut ids: Vec<u32>) -> Bytes {
    ids.iter_mut().for_each(|id| *id = id.to_le());
    Bytes::from_owner(Ids(ids))
}

/// The ids of these bytes. None: the last id is cut.
pub fn unpack(bytes: &[u8]) -> Option<Vec<u32>> {
    match bytes.as_chunks::<ID_BYTES>() {
        (ids, []) => Some(ids.iter().map(|id| u32::from_le_bytes(*id)).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

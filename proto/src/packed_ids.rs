//! Token ids as bytes: four for each id, little-endian. Unlike protobuf's integers, they are copied as a whole.

use prost::bytes::Bytes;

const ID_BYTES: usize = size_of::<u32>();

/// The bytes of these ids.
pub fn pack(ids: &[u32]) -> Bytes {
    let mut bytes = vec![0; size_of_val(ids)];
    for (to, id) in bytes.as_chunks_mut::<ID_BYTES>().0.iter_mut().zip(ids) {
        *to = id.to_le_bytes();
    }
    bytes.into()
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

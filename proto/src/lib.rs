//! Rein's messages and services. `v1` is the public API, `internal` the protocol between routers, workers and ranks.
//! This crate does no I/O.

pub mod block_hash;
pub mod checks;
pub mod codec;

pub mod v1 {
    tonic::include_proto!("rein.v1");
}

pub mod internal {
    tonic::include_proto!("rein.internal.v1");

    impl RowResult {
        /// Of its last draw.
        pub fn token(&self) -> Option<u32> {
            self.drawn.last()?.token
        }

        /// Of its last draw.
        pub fn logprob(&self) -> Option<&TokenLogprob> {
            self.drawn.last()?.logprob.as_ref()
        }
    }
}

pub mod deadline;
pub mod packed_ids;
pub mod protocol;
pub mod splitmix;
pub mod stats;
pub mod trace_context;

/// The file descriptors of all messages, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

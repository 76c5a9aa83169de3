//! The codec of all services: protobuf, where large messages are encoded in one piece. It does not know messages.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::BufMut;
use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

/// Messages of at least this many bytes are encoded into memory of their own, which is then copied to the transport's
/// buffer. Writing the ids of a prompt to that buffer one by one takes several times as long.
const LARGE: usize = 4 << 10;

#[derive(Debug)]
pub struct WholeCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for WholeCodec<T, U> {
    fn default() -> Self {
        WholeCodec(PhantomData)
    }
}

impl<T, U> Codec for WholeCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = WholeEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> WholeEncoder<T> {
        WholeEncoder(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstDecoder::default()
    }
}

#[derive(Debug)]
pub struct WholeEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for WholeEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        if item.encoded_len() >= LARGE {
            buffer.put_slice(&item.encode_to_vec());
            return Ok(());
        }
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

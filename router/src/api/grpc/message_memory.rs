//! Charges a call's message to the memory budget, and refuses one whose decoded values would take too much memory.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use prost::Message;
use prost_types::{FileDescriptorSet, field_descriptor_proto::Type};
use rein_proto::DESCRIPTORS;
use tokio::time::Instant;

use crate::{
    admission::keys::caller_name,
    api::{body::collect, status::grpc_status},
    error::{Error, ErrorKind},
    fair::{CallerName, Requester},
    limits,
    memory::MemoryCharge,
    state::RouterState,
};

/// Bytes of a gRPC frame's flag and length.
const FRAME: usize = 5;
/// Maximum memory of a nested message besides its texts, decoded and as JSON for templates, in bytes.
const NESTED: usize = 1 << 10;
/// Memory of a field besides its text, in bytes.
const FIELD: usize = 32;
/// Maximum nesting of messages, as in the decoder.
const DEPTH: usize = 100;

/// The size of a call's message, and the memory that is charged for it.
#[derive(Clone)]
pub struct MessageCharge {
    pub bytes: usize,
    pub charge: Arc<MemoryCharge>,
}

pub async fn charge_message(State(state): State<Arc<RouterState>>, mut request: Request, next: Next) -> Response {
    let Some(&shape) = SHAPES.inputs.get(request.uri().path()) else { return next.run(request).await };
    let caller = caller_name(request.extensions().get());
    let body = std::mem::take(request.body_mut());
    match read_message(&state, body, caller, shape).await {
        Ok((body, charged)) => {
            *request.body_mut() = body.into();
            request.extensions_mut().insert(charged);
            next.run(request).await
        }
        Err(error) => {
            let status = grpc_status(&error);
            state.surfaces.request("grpc", "body", status.code() as i32 as u16);
            status.into_http()
        }
    }
}

async fn read_message(
    state: &RouterState,
    body: Body,
    caller: CallerName,
    shape: usize,
) -> Result<(Bytes, MessageCharge), Error> {
    let mut charge = state.memory.open_charge(caller.clone());
    let until = Instant::now() + limits::BODY_TIME;
    let limit = state.config.memory.body;
    let body = collect(body, limit + FRAME, 0, &mut charge).await.map_err(|error| match error.kind {
        ErrorKind::TooLarge => Error::body_too_large(None, limit),
        _ => error,
    })?;
    let (bytes, message) = (body.len(), body.clone());
    let estimate = move || SHAPES.estimate(shape, message.get(FRAME..).unwrap_or_default());
    let requester = Requester { caller, deadline: until };
    let estimated = state.memory.parse(bytes, &requester, estimate).await?;
    charge.resize(estimated, until).await?;
    Ok((body, MessageCharge { bytes, charge: Arc::new(charge) }))
}

/// The fields of the public messages, from which decoded sizes are estimated.
struct Shapes {
    messages: Vec<HashMap<u32, Field>>,
    /// Index of the input message of each call, by path.
    inputs: HashMap<String, usize>,
}

enum Field {
    Message(usize),
    Numbers,
    Other,
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::new(DESCRIPTORS));

impl Shapes {
    fn new(descriptors: &[u8]) -> Self {
        let files = FileDescriptorSet::decode(descriptors).expect("the build encodes the descriptors").file;
        let mut all = Vec::new();
        for file in &files {
            let outer = format!(".{}", file.package());
            let mut within: Vec<_> = file.message_type.iter().map(|message| (outer.clone(), message)).collect();
            while let Some((outer, message)) = within.pop() {
                let name = format!("{outer}.{}", message.name());
                within.extend(message.nested_type.iter().map(|nested| (name.clone(), nested)));
                all.push((name, message));
            }
        }
        let numbers: HashMap<&str, usize> = all.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
        let field = |field: &prost_types::FieldDescriptorProto| {
            let kind = match (field.r#type(), numbers.get(field.type_name())) {
                (Type::Message, Some(&message)) => Field::Message(message),
                (Type::String | Type::Bytes | Type::Message | Type::Group, _) => Field::Other,
                _ => Field::Numbers,
            };
            (field.number() as u32, kind)
        };
        let messages = all.iter().map(|(_, message)| message.field.iter().map(field).collect()).collect();
        let mut inputs = HashMap::new();
        for file in &files {
            for service in file.service.iter().filter(|_| file.package() == "rein.v1") {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    inputs.extend(numbers.get(method.input_type()).map(|&input| (path, input)));
                }
            }
        }
        Shapes { messages, inputs }
    }

    /// Approximate memory of the decoded message. Bytes that are not such a message are left to the decoder.
    fn estimate(&self, shape: usize, message: &[u8]) -> Result<usize, Error> {
        let limit = message.len() + limits::VALUE_BYTES;
        let mut used = 0;
        self.add(shape, message, DEPTH, limit, &mut used);
        if used <= limit {
            return Ok(used);
        }
        let text =
            format!("the message has too many values: decoded, a message of this size may take at most {limit} bytes");
        Err(Error { code: Some("too_many_values"), ..Error::new(ErrorKind::Invalid, text) })
    }

    fn add(&self, shape: usize, mut bytes: &[u8], depth: usize, limit: usize, used: &mut usize) {
        while let Some(tag) = varint(&mut bytes).filter(|_| *used <= limit) {
            *used += FIELD;
            let length = match tag & 7 {
                0 => {
                    varint(&mut bytes);
                    0
                }
                1 => 8,
                2 => varint(&mut bytes).map_or(usize::MAX, |length| usize::try_from(length).unwrap_or(usize::MAX)),
                5 => 4,
                _ => usize::MAX,
            };
            let Some((value, rest)) = bytes.split_at_checked(length) else { return };
            bytes = rest;
            if tag & 7 != 2 {
                continue;
            }
            match self.messages.get(shape).and_then(|fields| fields.get(&((tag >> 3) as u32))) {
                Some(Field::Message(nested)) if depth > 0 => {
                    *used += NESTED;
                    self.add(*nested, value, depth - 1, limit, used);
                }
                // Packed numbers: each byte may be one number.
                Some(Field::Numbers) => *used += 4 * length,
                _ => *used += length,
            }
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;

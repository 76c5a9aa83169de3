//! `/v1/embeddings`: decodes the request and encodes the answer.

use base64::{Engine, engine::general_purpose::STANDARD};
use rein_proto::v1;
use rein_text::fields::{Fields, ParsedBody};
use serde::{Serialize, Serializer};
#[cfg(test)]
use serde_json::Value;

use super::{WITHOUT_EFFECT, completion::prompts, refused, session};
use crate::{error::Error, request::job::EmbedJob};

pub struct EmbeddingRequest {
    pub job: EmbedJob,
    pub encoding: NumberEncoding,
}

/// How the numbers of a vector are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberEncoding {
    /// A JSON array.
    Float,
    /// Base64 of little-endian 32-bit floats.
    Base64,
}

pub fn embedding(body: &[u8]) -> Result<ParsedBody<EmbeddingRequest>, Error> {
    super::body(body)?.read(read)
}

fn read(fields: &mut Fields) -> Result<EmbeddingRequest, Error> {
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    fields.refuse(refused::IN_EMBEDDINGS)?;
    let encoding = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => NumberEncoding::Float,
        Some("base64") => NumberEncoding::Base64,
        Some(other) => {
            let message = format!("'encoding_format' must be 'float' or 'base64', got '{other}'");
            return Err(Error::invalid("encoding_format", message));
        }
    };
    let job = EmbedJob {
        model: fields.string("model")?,
        inputs: prompts(fields, "input")?,
        dimensions: fields.integer("dimensions", 1..=u32::MAX)?,
        add_special_tokens: fields.bool("add_special_tokens")?.unwrap_or(true),
        cache_salt: fields.string("cache_salt")?,
        priority: fields.signed("priority")?,
        session: session(None, fields.string("user")?),
    };
    job.check()?;
    Ok(EmbeddingRequest { job, encoding })
}

#[derive(Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<EmbeddingItem<'a>>,
    model: &'a str,
    usage: EmbeddingUsage,
}

#[derive(Serialize)]
struct EmbeddingItem<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

struct Vector<'a> {
    numbers: &'a [f32],
    encoding: NumberEncoding,
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.encoding {
            NumberEncoding::Float => self.numbers.serialize(serializer),
            NumberEncoding::Base64 => {
                let bytes: Vec<u8> = self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                serializer.serialize_str(&STANDARD.encode(bytes))
            }
        }
    }
}

#[derive(Serialize)]
struct EmbeddingUsage {
    prompt_tokens: u32,
    total_tokens: u32,
}

/// The answer of `/v1/embeddings`.
pub fn embedding_body(model: &str, vectors: &[Vec<f32>], usage: &v1::Usage, encoding: NumberEncoding) -> Vec<u8> {
    let item = |index, numbers| EmbeddingItem { object: "embedding", index, embedding: Vector { numbers, encoding } };
    let list = EmbeddingList {
        object: "list",
        data: vectors.iter().enumerate().map(|(index, numbers)| item(index, numbers)).collect(),
        model,
        usage: EmbeddingUsage { prompt_tokens: usage.prompt_tokens, total_tokens: usage.total_tokens },
    };
    crate::api::to_json(&list)
}

/// Every field that a request may have, for tests of the documentation.
#[cfg(test)]
pub fn asked(body: Value) -> Vec<&'static str> {
    super::names_read(&body, read)
}

//! Builds small GGUF headers for tests. It knows no architecture but the sizes that `Header::dense` writes.

use crate::container::Gguf;

/// The parts of a header, as bytes.
#[derive(Clone)]
pub(crate) struct Header {
    version: u32,
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u64)>,
}

/// A value with its type, as in the file.
pub(crate) enum Put<'a> {
    U32(u32),
    I32(i32),
    U16(u16),
    F32(f32),
    Bool(bool),
    Str(&'a str),
    Strs(&'a [&'a str]),
    I32s(&'a [i32]),
    F32s(&'a [f32]),
    Raw(&'a [u8]),
}

pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn array(kind: u32, count: usize) -> Vec<u8> {
    [&9_u32.to_le_bytes()[..], &kind.to_le_bytes(), &(count as u64).to_le_bytes()].concat()
}

impl Put<'_> {
    fn bytes(&self) -> Vec<u8> {
        let one = |kind: u32, value: &[u8]| [&kind.to_le_bytes(), value].concat();
        match self {
            Put::U32(n) => one(4, &n.to_le_bytes()),
            Put::I32(n) => one(5, &n.to_le_bytes()),
            Put::U16(n) => one(2, &n.to_le_bytes()),
            Put::F32(n) => one(6, &n.to_le_bytes()),
            Put::Bool(on) => one(7, &[u8::from(*on)]),
            Put::Str(string) => {
                let mut out = 8_u32.to_le_bytes().to_vec();
                text(&mut out, string);
                out
            }
            Put::Strs(list) => {
                let mut out = array(8, list.len());
                list.iter().for_each(|string| text(&mut out, string));
                out
            }
            Put::I32s(list) => {
                let mut out = array(5, list.len());
                list.iter().for_each(|n| out.extend(n.to_le_bytes()));
                out
            }
            Put::F32s(list) => {
                let mut out = array(6, list.len());
                list.iter().for_each(|n| out.extend(n.to_le_bytes()));
                out
            }
            Put::Raw(bytes) => bytes.to_vec(),
        }
    }
}

impl Header {
    pub fn new() -> Self {
        Header { version: 3, keys: Vec::new(), tensors: Vec::new() }
    }

    pub fn version(self, version: u32) -> Self {
        Header { version, ..self }
    }

    pub fn put(mut self, key: &str, value: Put) -> Self {
        self.keys.push((key.into(), value.bytes()));
        self
    }

    /// Replaces or adds.
    pub fn set(self, key: &str, value: Put) -> Self {
        self.without(key).put(key, value)
    }

    pub fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(name, _)| name != key);
        self
    }

    pub fn tensor(self, name: &str, dims: &[u64]) -> Self {
        self.tensor_at(name, dims, 0)
    }

    pub fn tensor_at(mut self, name: &str, dims: &[u64], offset: u64) -> Self {
        self.tensors.push((name.into(), dims.into(), offset));
        self
    }

    pub fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|(other, ..)| other != name);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut out, key);
            out.extend(value);
        }
        for (name, dims, offset) in &self.tensors {
            text(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(0_u32.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out
    }

    pub fn read(&self) -> Gguf {
        Gguf::read(self.bytes().as_slice()).expect("the header is valid")
    }

    /// A dense model of this architecture: 2 layers, 2 heads of 4, 1 KV head, hidden size 8, the vocabulary of
    /// `byte_level`.
    pub fn dense(arch: &str) -> Self {
        Header::new()
            .put("general.architecture", Put::Str(arch))
            .put(&format!("{arch}.block_count"), Put::U32(2))
            .put(&format!("{arch}.context_length"), Put::U32(64))
            .put(&format!("{arch}.embedding_length"), Put::U32(8))
            .put(&format!("{arch}.feed_forward_length"), Put::U32(12))
            .put(&format!("{arch}.attention.head_count"), Put::U32(2))
            .put(&format!("{arch}.attention.head_count_kv"), Put::U32(1))
            .put(&format!("{arch}.attention.layer_norm_rms_epsilon"), Put::F32(1e-6))
            .put(&format!("{arch}.rope.freq_base"), Put::F32(1e6))
            .tensor("token_embd.weight", &[8, BYTE_LEVEL.len() as u64])
            .tensor("output_norm.weight", &[8])
            .byte_level()
    }

    pub fn byte_level(self) -> Self {
        self.set("tokenizer.ggml.model", Put::Str("gpt2"))
            .set("tokenizer.ggml.pre", Put::Str("qwen2"))
            .set("tokenizer.ggml.tokens", Put::Strs(&BYTE_LEVEL))
            .set("tokenizer.ggml.token_type", Put::I32s(&BYTE_LEVEL_TYPES))
            .set("tokenizer.ggml.merges", Put::Strs(&["a b", "Ġ a", "Ġ ab"]))
            .set("tokenizer.ggml.bos_token_id", Put::U32(8))
            .set("tokenizer.ggml.eos_token_id", Put::U32(9))
    }
}

pub(crate) const BYTE_LEVEL: [&str; 12] =
    ["a", "b", "Ġ", "ab", "Ġa", "Ġab", "1", "Ċ", "<|begin|>", "<|im_end|>", "<tool>", "[PAD11]"];
pub(crate) const BYTE_LEVEL_TYPES: [i32; 12] = [1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 4, 5];

//! The safetensors container (github.com/huggingface/safetensors): eight bytes of header length, a JSON header with a
//! dtype, shape and byte range per tensor, then the bytes. Several files with an index make one checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use rein_kernels::mapped::Mapped;
use serde_json::{Map, Value};

use super::error::LoadError;

const MAX_HEADER_BYTES: usize = 100_000_000;
const MAX_INDEX_BYTES: u64 = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    F8E4m3,
    I32,
    I64,
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F8_E4M3" => Self::F8E4m3,
            "I32" => Self::I32,
            "I64" => Self::I64,
            _ => return None,
        })
    }

    pub fn size(self) -> usize {
        match self {
            Self::F8E4m3 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F8E4m3 => "F8_E4M3",
            Self::I32 => "I32",
            Self::I64 => "I64",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    file: usize,
    /// Within the file.
    range: Range<usize>,
}

/// All tensors of a checkpoint by name.
pub struct Shards {
    files: Vec<Mapped>,
    tensors: BTreeMap<String, Entry>,
}

impl Shards {
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let mut shards = Self { files: Vec::new(), tensors: BTreeMap::new() };
        if single.exists() {
            shards.add(&single)?;
        } else if index.exists() {
            shards.open_indexed(dir, &index)?;
        } else {
            let what = "has neither model.safetensors nor model.safetensors.index.json (other containers, such as \
                        pytorch_model.bin or GGUF, are not read)";
            return Err(LoadError::File { path: dir.to_owned(), what: what.into() });
        }
        Ok(shards)
    }

    fn open_indexed(&mut self, dir: &Path, index: &Path) -> Result<(), LoadError> {
        let map = read_index(index)?;
        let bad = |what: String| LoadError::File { path: index.to_owned(), what };
        let mut names = BTreeSet::new();
        for (tensor, file) in &map {
            let file = file.as_str().ok_or_else(|| bad(format!("weight_map.{tensor} must be a file name")))?;
            if file.is_empty() || file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(bad(format!("weight_map.{tensor}: {file:?} is not a file name in this directory")));
            }
            names.insert(file);
        }
        for name in &names {
            let path = dir.join(name);
            if !path.exists() {
                let what = "is named in model.safetensors.index.json but is not there".into();
                return Err(LoadError::File { path, what });
            }
            self.add(&path)?;
        }
        let missing: Vec<String> = map.keys().filter(|name| !self.tensors.contains_key(*name)).cloned().collect();
        if missing.is_empty() { Ok(()) } else { Err(LoadError::Missing(missing)) }
    }

    fn add(&mut self, path: &Path) -> Result<(), LoadError> {
        let map = Mapped::open(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        let file = self.files.len();
        let entries = parse_header(&map).map_err(|what| LoadError::File { path: path.to_owned(), what })?;
        for (name, dtype, shape, range) in entries {
            if self.tensors.contains_key(&name) {
                return Err(LoadError::File { path: path.to_owned(), what: format!("tensor {name} occurs twice") });
            }
            self.tensors.insert(name, Entry { dtype, shape, file, range });
        }
        self.files.push(map);
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.tensors.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.files[entry.file][entry.range.clone()]
    }

    /// The bytes of `within` (an offset range inside the tensor) will not be read again soon.
    pub fn release(&self, entry: &Entry, within: Range<usize>) {
        let start = entry.range.start;
        self.files[entry.file].release(start + within.start..start + within.end);
    }
}

fn read_index(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let io = |source| LoadError::Io { path: path.to_owned(), source };
    let bad = |what: String| LoadError::File { path: path.to_owned(), what };
    if std::fs::metadata(path).map_err(io)?.len() > MAX_INDEX_BYTES {
        return Err(bad(format!("is larger than {MAX_INDEX_BYTES} bytes")));
    }
    let text = std::fs::read(path).map_err(io)?;
    let value: Value = serde_json::from_slice(&text).map_err(|e| bad(format!("is not JSON: {e}")))?;
    match value.get("weight_map") {
        Some(Value::Object(map)) => Ok(map.clone()),
        _ => Err(bad("has no object weight_map".into())),
    }
}

type Parsed = (String, Dtype, Vec<usize>, Range<usize>);

fn parse_header(file: &[u8]) -> Result<Vec<Parsed>, String> {
    let length = file.first_chunk::<8>().ok_or("is shorter than a safetensors header")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER_BYTES {
        return Err(format!("header of {length} bytes is longer than {MAX_HEADER_BYTES}; not a safetensors file?"));
    }
    let header = file.get(8..8 + length).ok_or_else(|| format!("is truncated within its header of {length} bytes"))?;
    let header: Map<String, Value> =
        serde_json::from_slice(header).map_err(|e| format!("has a header that is not a JSON object: {e}"))?;
    let data = 8 + length;
    let mut tensors = Vec::with_capacity(header.len());
    for (name, value) in &header {
        if name == "__metadata__" {
            continue;
        }
        let bad = |what: &str| format!("header entry {name}: {what}");
        let dtype = value.get("dtype").and_then(Value::as_str).ok_or_else(|| bad("has no dtype"))?;
        let Some(dtype) = Dtype::parse(dtype) else {
            return Err(bad(&format!("dtype {dtype} is not supported")));
        };
        let sizes = |key: &str| -> Option<Vec<usize>> {
            value.get(key)?.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize)).collect()
        };
        let shape = sizes("shape").ok_or_else(|| bad("has no shape"))?;
        let offsets = sizes("data_offsets").ok_or_else(|| bad("has no data_offsets"))?;
        let [begin, end] = offsets[..] else { return Err(bad("data_offsets must be two numbers")) };
        let bytes = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d));
        if begin > end || bytes != Some(end - begin) {
            return Err(bad(&format!("data_offsets [{begin}, {end}] do not fit shape {shape:?}")));
        }
        match data.checked_add(end) {
            Some(last) if last <= file.len() => tensors.push((name.clone(), dtype, shape, data + begin..last)),
            _ => {
                let wanted = data.saturating_add(end);
                return Err(format!(
                    "is truncated: tensor {name} ends at byte {wanted}, the file has {}; download it again",
                    file.len()
                ));
            }
        }
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    #[test]
    fn good_headers_parse_and_bad_ones_are_named() {
        let one = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
        let parsed = parse_header(&file(one, 12)).expect("good");
        assert_eq!((parsed.len(), &parsed[0].2[..]), (1, &[2, 3][..]));
        let cases = [
            (file(one, 11), "truncated: tensor a"),
            (vec![1, 2, 3], "shorter than"),
            (file(one, 12)[..20].to_vec(), "truncated within its header"),
            (file("[]", 0), "not a JSON object"),
            (u64::MAX.to_le_bytes().to_vec(), "not a safetensors file"),
            (file(r#"{"a":{"dtype":"U3","shape":[],"data_offsets":[0,1]}}"#, 1), "dtype U3"),
            (file(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 8), "do not fit shape"),
            (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#, 8), "do not fit shape"),
            (file(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, 8), "do not fit"),
        ];
        for (bytes, expected) in cases {
            let error = parse_header(&bytes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}

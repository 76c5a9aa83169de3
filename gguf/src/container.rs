//! Reads the header of a GGUF file: metadata and the list of tensors. It does not know what a key means.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::{BTreeMap, HashSet};
use std::io::{ErrorKind, Read};

use crate::GgufError;

const MAGIC: [u8; 4] = *b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
const DEFAULT_ALIGNMENT: u64 = 32;
/// A larger alignment has no use, and the offset of the data must not overflow.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// Headers of real files have up to 40 MB, most of it tokens.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// The format's limit.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
const MAX_STRING_BYTES: u64 = 64 << 20;
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
/// Elements of all arrays together; a vocabulary of 300,000 tokens has about 1.5 million.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
const MAX_ARRAY_DEPTH: usize = 4;
const MAX_DIMS: u32 = 4;
/// The most that is allocated before the elements have been read.
const FIRST_CAPACITY: usize = 1 << 12;

/// The header of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    pub metadata: BTreeMap<String, MetadataValue>,
    pub tensors: Vec<TensorInfo>,
    /// Offset of the tensors' data in the file, bytes.
    pub data_start: u64,
}

/// One tensor of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    /// As in the file: the innermost (contiguous) dimension first.
    pub dims: Vec<u64>,
    /// ggml's number of the element type.
    pub kind: u32,
    /// Offset of the data in its file, bytes.
    pub offset: u64,
    /// Index of the file in the list of `split_files`; 0 if the model is one file.
    pub file: usize,
}

/// A value of the metadata. 32-bit floats are stored as the shortest decimal that rounds to them: 1e-6, not
/// 9.999999974752427e-7.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(MetadataArray),
}

#[derive(Debug, Clone, PartialEq)]
pub enum MetadataArray {
    Unsigned(Vec<u64>),
    Signed(Vec<i64>),
    Float(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<MetadataArray>),
}

impl MetadataValue {
    /// The type's name for messages.
    pub fn kind_name(&self) -> &'static str {
        match self {
            MetadataValue::Unsigned(_) | MetadataValue::Signed(_) => "an integer",
            MetadataValue::Float(_) => "a float",
            MetadataValue::Bool(_) => "a bool",
            MetadataValue::String(_) => "a string",
            MetadataValue::Array(array) => match array {
                MetadataArray::Unsigned(_) | MetadataArray::Signed(_) => "an array of integers",
                MetadataArray::Float(_) => "an array of floats",
                MetadataArray::Bool(_) => "an array of bools",
                MetadataArray::String(_) => "an array of strings",
                MetadataArray::Array(_) => "an array of arrays",
            },
        }
    }
}

impl Gguf {
    /// Reads the header and nothing after it. A reader without a buffer is slow: wrap a file in `BufReader`.
    pub fn read(reader: impl Read) -> Result<Gguf, GgufError> {
        HeaderReader { reader, at: 0, elements: 0 }.header()
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

struct HeaderReader<R> {
    reader: R,
    /// Bytes read.
    at: u64,
    /// Array elements read.
    elements: u64,
}

impl<R: Read> HeaderReader<R> {
    fn header(mut self) -> Result<Gguf, GgufError> {
        let magic: [u8; 4] = self.fixed("the magic bytes")?;
        if magic != MAGIC {
            let what = format!("must be \"GGUF\", got \"{}\"", magic.escape_ascii());
            return Err(GgufError::invalid("magic", what));
        }
        self.version()?;
        let tensors = self.count("the number of tensors", MAX_TENSORS)?;
        let keys = self.count("the number of metadata keys", MAX_KEYS)?;
        let mut metadata = BTreeMap::new();
        for i in 0..keys {
            let key = self.string(&format!("metadata key {i} of {keys}"), MAX_KEY_BYTES)?;
            let kind = self.u32(&key)?;
            let value = self.value(&key, kind)?;
            if metadata.contains_key(&key) {
                return Err(GgufError::invalid(key, "appears twice; a key must appear once"));
            }
            metadata.insert(key, value);
        }
        let alignment = alignment(&metadata)?;
        let mut infos = Vec::with_capacity(FIRST_CAPACITY.min(tensors as usize));
        let mut names = HashSet::new();
        for i in 0..tensors {
            let info = self.tensor(&format!("tensor {i} of {tensors}"), alignment)?;
            if !names.insert(info.name.clone()) {
                return Err(GgufError::invalid(info.name, "the tensor appears twice; a name must appear once"));
            }
            infos.push(info);
        }
        let data_start = self.at.next_multiple_of(alignment);
        for info in &mut infos {
            info.offset = data_start
                .checked_add(info.offset)
                .ok_or_else(|| GgufError::invalid(&info.name, "the tensor's offset is beyond 2^64 bytes"))?;
        }
        Ok(Gguf { metadata, tensors: infos, data_start })
    }

    fn version(&mut self) -> Result<(), GgufError> {
        let version = self.u32("the version")?;
        if VERSIONS.contains(&version) {
            return Ok(());
        }
        Err(if VERSIONS.contains(&version.swap_bytes()) {
            GgufError::unsupported("version", "the file is big-endian; convert it to little-endian")
        } else {
            GgufError::unsupported("version", format!("must be 2 or 3, got {version}; convert the model again"))
        })
    }

    fn tensor(&mut self, what: &str, alignment: u64) -> Result<TensorInfo, GgufError> {
        let name = self.string(what, MAX_KEY_BYTES)?;
        let count = self.u32(&name)?;
        if count > MAX_DIMS {
            return Err(GgufError::invalid(name, format!("must have at most {MAX_DIMS} dimensions, got {count}")));
        }
        let dims = (0..count).map(|_| self.u64(&name)).collect::<Result<Vec<_>, _>>()?;
        let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
        if elements.is_none_or(|n| n == 0 || n > i64::MAX as u64) {
            return Err(GgufError::invalid(
                name,
                format!("must have from 1 to 2^63 elements, got dimensions {dims:?}"),
            ));
        }
        let kind = self.u32(&name)?;
        let offset = self.u64(&name)?;
        if !offset.is_multiple_of(alignment) {
            let what = format!("the offset must be a multiple of the alignment, {alignment}, got {offset}");
            return Err(GgufError::invalid(name, what));
        }
        Ok(TensorInfo { name, dims, kind, offset, file: 0 })
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<MetadataValue, GgufError> {
        Ok(match kind {
            0 => MetadataValue::Unsigned(u8::from_le_bytes(self.fixed(key)?).into()),
            1 => MetadataValue::Signed(i8::from_le_bytes(self.fixed(key)?).into()),
            2 => MetadataValue::Unsigned(u16::from_le_bytes(self.fixed(key)?).into()),
            3 => MetadataValue::Signed(i16::from_le_bytes(self.fixed(key)?).into()),
            4 => MetadataValue::Unsigned(self.u32(key)?.into()),
            5 => MetadataValue::Signed(i32::from_le_bytes(self.fixed(key)?).into()),
            6 => MetadataValue::Float(shortest_decimal(f32::from_le_bytes(self.fixed(key)?))),
            7 => MetadataValue::Bool(self.bool(key)?),
            8 => MetadataValue::String(self.string(key, MAX_STRING_BYTES)?),
            9 => MetadataValue::Array(self.array(key, 1)?),
            10 => MetadataValue::Unsigned(self.u64(key)?),
            11 => MetadataValue::Signed(i64::from_le_bytes(self.fixed(key)?)),
            12 => MetadataValue::Float(f64::from_le_bytes(self.fixed(key)?)),
            other => return Err(unknown_type(key, other)),
        })
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<MetadataArray, GgufError> {
        if depth > MAX_ARRAY_DEPTH {
            let what = format!("arrays may be nested at most {MAX_ARRAY_DEPTH} deep");
            return Err(GgufError::invalid(key, what));
        }
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        let left = MAX_ARRAY_ELEMENTS - self.elements;
        if count > left {
            let what = format!("the file's arrays may have {MAX_ARRAY_ELEMENTS} elements, {left} remain, got {count}");
            return Err(GgufError::invalid(key, what));
        }
        self.elements += count;
        Ok(match kind {
            0 => MetadataArray::Unsigned(self.many(count, |s| Ok(u8::from_le_bytes(s.fixed(key)?).into()))?),
            1 => MetadataArray::Signed(self.many(count, |s| Ok(i8::from_le_bytes(s.fixed(key)?).into()))?),
            2 => MetadataArray::Unsigned(self.many(count, |s| Ok(u16::from_le_bytes(s.fixed(key)?).into()))?),
            3 => MetadataArray::Signed(self.many(count, |s| Ok(i16::from_le_bytes(s.fixed(key)?).into()))?),
            4 => MetadataArray::Unsigned(self.many(count, |s| Ok(s.u32(key)?.into()))?),
            5 => MetadataArray::Signed(self.many(count, |s| Ok(i32::from_le_bytes(s.fixed(key)?).into()))?),
            6 => MetadataArray::Float(self.many(count, |s| Ok(f32::from_le_bytes(s.fixed(key)?).into()))?),
            7 => MetadataArray::Bool(self.many(count, |s| s.bool(key))?),
            8 => MetadataArray::String(self.many(count, |s| s.string(key, MAX_STRING_BYTES))?),
            9 => MetadataArray::Array(self.many(count, |s| s.array(key, depth + 1))?),
            10 => MetadataArray::Unsigned(self.many(count, |s| s.u64(key))?),
            11 => MetadataArray::Signed(self.many(count, |s| Ok(i64::from_le_bytes(s.fixed(key)?)))?),
            12 => MetadataArray::Float(self.many(count, |s| Ok(f64::from_le_bytes(s.fixed(key)?)))?),
            other => return Err(unknown_type(key, other)),
        })
    }

    /// The vector grows as elements are read, so that a false count allocates little.
    fn many<T>(
        &mut self,
        count: u64,
        mut read: impl FnMut(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        let mut values = Vec::with_capacity(FIRST_CAPACITY.min(count as usize));
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    fn count(&mut self, what: &str, most: u64) -> Result<u64, GgufError> {
        match self.u64(what)? {
            count if count <= most => Ok(count),
            count => Err(GgufError::invalid(what, format!("must be at most {most}, got {count}"))),
        }
    }

    fn bool(&mut self, what: &str) -> Result<bool, GgufError> {
        match self.fixed(what)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(GgufError::invalid(what, format!("a bool must be 0 or 1, got {other}"))),
        }
    }

    fn string(&mut self, what: &str, most: u64) -> Result<String, GgufError> {
        let length = self.u64(what)?;
        if length > most {
            return Err(GgufError::invalid(what, format!("the string may have {most} bytes, got {length}")));
        }
        self.advance(what, length)?;
        let mut bytes = Vec::with_capacity(FIRST_CAPACITY.min(length as usize));
        let read = self.reader.by_ref().take(length).read_to_end(&mut bytes);
        match read {
            Ok(read) if read as u64 == length => {}
            Ok(_) => return Err(read_error(what, ErrorKind::UnexpectedEof.into())),
            Err(source) => return Err(read_error(what, source)),
        }
        String::from_utf8(bytes).map_err(|e| GgufError::invalid(what, format!("the string must be UTF-8: {e}")))
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        self.advance(what, N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|source| read_error(what, source))?;
        Ok(bytes)
    }

    fn advance(&mut self, what: &str, bytes: u64) -> Result<(), GgufError> {
        self.at += bytes;
        if self.at > MAX_HEADER_BYTES {
            return Err(GgufError::invalid(what, format!("the header may have {MAX_HEADER_BYTES} bytes")));
        }
        Ok(())
    }
}

fn alignment(metadata: &BTreeMap<String, MetadataValue>) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&MetadataValue::Unsigned(n)) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n),
        Some(other) => {
            Err(GgufError::invalid(KEY, format!("must be a power of two up to {MAX_ALIGNMENT}, got {other:?}")))
        }
    }
}

fn unknown_type(key: &str, kind: u32) -> GgufError {
    GgufError::invalid(key, format!("the value's type must be from 0 to 12, got {kind}"))
}

fn read_error(what: &str, source: std::io::Error) -> GgufError {
    match source.kind() {
        ErrorKind::UnexpectedEof => GgufError::invalid(what, "the file ends here; it is truncated, download it again"),
        _ => GgufError::Read { what: what.into(), source },
    }
}

fn shortest_decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests;

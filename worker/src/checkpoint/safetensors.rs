//! The safetensors container (github.com/huggingface/safetensors): eight bytes of header length, a JSON header with a
//! dtype, shape and byte range per tensor, then the bytes. Several files with an index make one checkpoint.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::error::LoadError;
use super::reads::Reads;
use super::source::{Source, read_file};
use crate::limits::HASHED_WHOLE;

/// Bytes of the header's length, which comes first.
const LENGTH: usize = 8;
const MAX_HEADER_BYTES: u64 = 100_000_000;
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

impl Entry {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }
}

/// All tensors of a checkpoint by name.
pub struct Shards {
    files: Vec<Source>,
    tensors: BTreeMap<String, Entry>,
    reads: Arc<Reads>,
    /// Something has been read since it was last looked whether all files are as they were.
    unproven: AtomicBool,
}

impl Shards {
    pub fn open(dir: &Path, reads: &Arc<Reads>) -> Result<Self, LoadError> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let unproven = AtomicBool::new(true);
        let mut shards = Self { files: Vec::new(), tensors: BTreeMap::new(), reads: reads.clone(), unproven };
        // A link that leads nowhere is there, too: it is named then.
        let is_there = |path: &Path| reads.during(path, || path.symlink_metadata().is_ok());
        if is_there(&single) {
            shards.add(&single)?;
        } else if is_there(&index) {
            shards.open_indexed(dir, &index, is_there)?;
        } else {
            let what = "has neither model.safetensors nor model.safetensors.index.json (other containers, such as \
                        pytorch_model.bin or GGUF, are not read)";
            return Err(LoadError::File { path: dir.to_owned(), what: what.into() });
        }
        Ok(shards)
    }

    fn open_indexed(&mut self, dir: &Path, index: &Path, is_there: impl Fn(&Path) -> bool) -> Result<(), LoadError> {
        let map = read_index(index, &self.reads)?;
        let bad = |what: String| LoadError::File { path: index.to_owned(), what };
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, file) in &map {
            let file = file.as_str().ok_or_else(|| bad(format!("weight_map.{tensor} must be a file name")))?;
            if file.is_empty() || file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(bad(format!("weight_map.{tensor}: {file:?} is not a file name in this directory")));
            }
            files.entry(file).or_default().push(tensor);
        }
        for (name, tensors) in &files {
            let path = dir.join(name);
            if !is_there(&path) {
                let what = format!("is not there, but model.safetensors.index.json says it holds {}", tensors[0]);
                return Err(LoadError::File { path, what });
            }
            self.add(&path)?;
            let here = |tensor: &&&str| self.tensors.get(**tensor).is_some_and(|e| e.file + 1 == self.files.len());
            if let Some(missing) = tensors.iter().find(|tensor| !here(tensor)) {
                let what = format!("does not hold tensor {missing}, but model.safetensors.index.json says it does");
                return Err(LoadError::File { path, what });
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path) -> Result<(), LoadError> {
        let source = Source::open(path, &self.reads)?;
        let bad = |what: String| LoadError::File { path: path.to_owned(), what };
        let file = self.files.len();
        let entries = parse_header(&read_header(&source)?, source.len()).map_err(bad)?;
        for (name, dtype, shape, range) in entries {
            if let Some(known) = self.tensors.get(&name) {
                let other = self.files.get(known.file).map(|other| other.path().display().to_string());
                let what = format!("tensor {name} is also in {}; it must be in one file", other.unwrap_or_default());
                return Err(bad(what));
            }
            self.tensors.insert(name, Entry { dtype, shape, file, range });
        }
        self.files.push(source);
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.tensors.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// The bytes of `within`, an offset range inside the tensor, into `out`.
    pub fn read(&self, entry: &Entry, within: Range<usize>, out: &mut Vec<u8>) -> Result<(), LoadError> {
        self.unproven.store(true, Ordering::SeqCst);
        out.resize(within.len(), 0);
        self.files[entry.file].read((entry.range.start + within.start) as u64, out)
    }

    /// Of each file its name and a hash of what is in it, in parts unless all of them are small.
    pub fn hashes(&self) -> Result<Vec<(PathBuf, u64)>, LoadError> {
        let whole = self.files.iter().map(Source::len).sum::<u64>() <= HASHED_WHOLE;
        let of = |source: &Source| Ok((source.path().file_name().unwrap_or_default().into(), source.sample(whole)?));
        self.files.iter().map(of).collect()
    }

    /// That size and time of all files are what they were.
    pub fn unwritten(&self) -> Result<(), LoadError> {
        self.files.iter().try_for_each(Source::unwritten)
    }

    /// That whatever has been read is from files that nobody has written to since they were opened: of each, size and time,
    /// and the parts that say what it is.
    pub fn prove(&self) -> Result<(), LoadError> {
        if self.unproven.swap(false, Ordering::SeqCst) {
            let proven = self.files.iter().try_for_each(|source| source.sample(false).map(drop));
            proven.inspect_err(|_| self.unproven.store(true, Ordering::SeqCst))?;
        }
        Ok(())
    }
}

/// A JSON object in which a key may not occur twice: of two, JSON readers keep one, and not all the same.
struct Unique(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("{key} occurs twice")));
                    }
                    entries.push((key, value));
                }
                Ok(Unique(entries))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

fn read_index(path: &Path, reads: &Reads) -> Result<Vec<(String, Value)>, LoadError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Unique,
    }
    let text = read_file(path, MAX_INDEX_BYTES, reads)?;
    let index = serde_json::from_slice::<Index>(&text);
    let index = index.map_err(|e| LoadError::File { path: path.to_owned(), what: format!("is not an index: {e}") })?;
    Ok(index.weight_map.0)
}

type Parsed = (String, Dtype, Vec<usize>, Range<usize>);

/// The JSON header of a file.
fn read_header(source: &Source) -> Result<Vec<u8>, LoadError> {
    let bad = |what: String| LoadError::File { path: source.path().to_owned(), what };
    let mut length = [0; LENGTH];
    if source.len() < length.len() as u64 {
        return Err(bad(format!("has {} bytes, fewer than a safetensors header", source.len())));
    }
    source.read(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(bad(format!(
            "header of {length} bytes is longer than {MAX_HEADER_BYTES}; not a safetensors file?"
        )));
    }
    if length > source.len() - LENGTH as u64 {
        let found = source.len();
        return Err(bad(format!("is truncated within its header of {length} bytes: the file has {found} bytes")));
    }
    let mut header = vec![0; length as usize];
    source.read(LENGTH as u64, &mut header)?;
    Ok(header)
}

/// The tensors that the header of a file of `len` bytes names.
fn parse_header(header: &[u8], len: u64) -> Result<Vec<Parsed>, String> {
    let Unique(entries) =
        serde_json::from_slice(header).map_err(|e| format!("has a header that cannot be read: {e}"))?;
    let data = LENGTH + header.len();
    let mut tensors: Vec<Parsed> = Vec::with_capacity(entries.len());
    for (name, value) in entries {
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
            Some(last) if last as u64 <= len => tensors.push((name, dtype, shape, data + begin..last)),
            _ => {
                let wanted = data.saturating_add(end);
                return Err(format!(
                    "is truncated: tensor {name} ends at byte {wanted}, the file has {len}; download it again"
                ));
            }
        }
    }
    no_overlap(&tensors, data)?;
    Ok(tensors)
}

/// Each byte belongs to one tensor. Some may belong to none.
fn no_overlap(tensors: &[Parsed], data: usize) -> Result<(), String> {
    let mut ranges: Vec<(&Range<usize>, &String)> = tensors.iter().map(|(name, _, _, range)| (range, name)).collect();
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_by_key(|(range, _)| range.start);
    for pair in ranges.windows(2) {
        let [(before, a), (after, b)] = pair else { continue };
        if before.end > after.start {
            let of = |range: &Range<usize>| format!("[{}, {}]", range.start - data, range.end - data);
            return Err(format!("tensors {a} at {} and {b} at {} overlap", of(before), of(after)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(header: &str, data: u64) -> Result<Vec<Parsed>, String> {
        parse_header(header.as_bytes(), (LENGTH + header.len()) as u64 + data)
    }

    #[test]
    fn good_headers_parse_and_bad_ones_are_named() {
        let one = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
        let good = parsed(one, 12).expect("good");
        assert_eq!((good.len(), &good[0].2[..]), (1, &[2, 3][..]));
        let two = |a: &str, b: &str| {
            let of = |name, at: &str| format!(r#""{name}":{{"dtype":"F8_E4M3","shape":[4],"data_offsets":{at}}}"#);
            format!("{{{},{}}}", of("a", a), of("b", b))
        };
        assert!(parsed(&two("[8,12]", "[0,4]"), 12).is_ok(), "a hole, and any order");
        let cases = [
            (one.to_owned(), 11, "truncated: tensor a"),
            ("[]".into(), 0, "expected a JSON object"),
            (r#"{"a":{"dtype":"U3","shape":[],"data_offsets":[0,1]}}"#.into(), 1, "dtype U3"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.into(), 8, "do not fit shape"),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#.into(), 8, "do not fit shape"),
            (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#.into(), 8, "do not fit"),
            (two("[0,4]", "[3,7]"), 8, "tensors a at [0, 4] and b at [3, 7] overlap"),
            (two("[4,8]", "[4,8]"), 8, "overlap"),
            (two("[0,4]", "[4,8]").replace("\"b\"", "\"a\""), 8, "a occurs twice"),
        ];
        for (header, data, expected) in cases {
            let error = parsed(&header, data).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}

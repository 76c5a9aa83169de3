//! Opens the tensors of GGUF files under the names of a checkpoint directory. It does not know what tensors mean.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rein_gguf::{ExpertPart, Gguf, GgufError, NamedTensor, RowOrder, hf_tensors, join_headers, split_files};
use rein_kernels::BlockForm;

use super::error::LoadError;
use super::reads::Reads;
use super::source::CheckpointFile;
use super::stored::{StoredDtype, TensorEntry};

/// Read at a time of a header.
const HEADER_PART: usize = 4 << 20;

/// The files of a model and its tensors by name.
pub type Opened = (Vec<CheckpointFile>, Vec<(String, TensorEntry)>);

/// Reads a file from its start.
struct FromStart<'a> {
    file: &'a CheckpointFile,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = (out.len() as u64).min(self.file.len() - self.at) as usize;
        self.file.read(self.at, &mut out[..n]).map_err(io::Error::other)?;
        self.at += n as u64;
        Ok(n)
    }
}

fn failed(path: &Path) -> impl Fn(GgufError) -> LoadError {
    move |error| LoadError::File { path: path.to_owned(), what: error.to_string() }
}

fn header(file: &CheckpointFile) -> Result<Gguf, LoadError> {
    let reader = BufReader::with_capacity(HEADER_PART, FromStart { file, at: 0 });
    Gguf::read(reader).map_err(failed(file.path()))
}

/// Opens the model whose first or only file is `path`.
pub fn open(path: &Path, reads: &Arc<Reads>) -> Result<Opened, LoadError> {
    let first = CheckpointFile::open(path, reads)?;
    let first_header = header(&first)?;
    let paths: Vec<PathBuf> = split_files(path, &first_header).map_err(failed(path))?;
    let (mut files, mut headers) = (vec![first], vec![first_header]);
    for (i, path) in paths.iter().enumerate().skip(1) {
        // A dangling link counts as present; it is reported when it is opened.
        if reads.during(path, || path.symlink_metadata().is_err()) {
            let first = paths[0].file_name().unwrap_or_default().display();
            let what = format!("is missing; it is part {} of the {} of {first}", i + 1, paths.len());
            return Err(LoadError::File { path: path.clone(), what });
        }
        let file = CheckpointFile::open(path, reads)?;
        headers.push(header(&file)?);
        files.push(file);
    }
    let gguf = join_headers(headers).map_err(failed(path))?;
    let named = hf_tensors(&gguf).map_err(failed(path))?;
    let entries = named.iter().map(|named| Ok((named.name.clone(), entry(&gguf, named, &files)?)));
    let entries = entries.collect::<Result<_, LoadError>>()?;
    Ok((files, entries))
}

/// ggml's numbers of element types.
fn dtype(kind: u32) -> Option<StoredDtype> {
    Some(match kind {
        0 => StoredDtype::F32,
        1 => StoredDtype::F16,
        2 => StoredDtype::Blocks(BlockForm::Q4_0),
        3 => StoredDtype::Blocks(BlockForm::Q4_1),
        6 => StoredDtype::Blocks(BlockForm::Q5_0),
        7 => StoredDtype::Blocks(BlockForm::Q5_1),
        8 => StoredDtype::Blocks(BlockForm::Q8_0),
        12 => StoredDtype::Blocks(BlockForm::Q4K),
        13 => StoredDtype::Blocks(BlockForm::Q5K),
        14 => StoredDtype::Blocks(BlockForm::Q6K),
        30 => StoredDtype::Bf16,
        39 => StoredDtype::Mxfp4,
        _ => return None,
    })
}

/// What others call a type that is not read.
fn other_name(kind: u32) -> String {
    let names = [
        (10, "Q2_K"),
        (11, "Q3_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (20, "IQ4_NL"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (23, "IQ4_XS"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
    ];
    names
        .iter()
        .find(|(number, _)| *number == kind)
        .map_or_else(|| format!("type {kind}"), |(_, name)| (*name).to_owned())
}

fn entry(gguf: &Gguf, named: &NamedTensor, files: &[CheckpointFile]) -> Result<TensorEntry, LoadError> {
    let info = &gguf.tensors[named.tensor];
    let file = &files[info.file];
    let bad =
        |what: String| LoadError::File { path: file.path().to_owned(), what: format!("tensor {}: {what}", info.name) };
    let Some(dtype) = dtype(info.kind) else {
        let read = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K and MXFP4";
        return Err(bad(format!("is stored as {}; the types that are read are {read}", other_name(info.kind))));
    };
    // The outermost dimension first.
    let dims = info.dims.iter().rev().map(|&n| usize::try_from(n).ok()).collect::<Option<Vec<usize>>>();
    let dims = dims.ok_or_else(|| bad("is too large".into()))?;
    let numbers = dims.iter().try_fold(1, |n: usize, &d| n.checked_mul(d));
    let cols = dims.last().copied().unwrap_or(1);
    let rows = numbers.map(|numbers| numbers / cols.max(1));
    let bytes = rows.and_then(|rows| rows.checked_mul(TensorEntry::row_bytes(dtype, cols)?));
    let bytes = bytes.ok_or_else(|| bad(format!("{dims:?} of {} is not a number of whole blocks", dtype.name())))?;
    let begin = usize::try_from(info.offset).map_err(|_| bad("is too far in the file".into()))?;
    let end = begin.checked_add(bytes).filter(|&end| end as u64 <= file.len());
    let end = end.ok_or_else(|| {
        let wanted = begin.saturating_add(bytes);
        bad(format!("ends at byte {wanted}, but the file has {}; it is truncated: download it again", file.len()))
    })?;
    let (range, shape) = match named.part {
        None => (begin..end, dims),
        Some(ExpertPart { expert, experts, piece: (piece, pieces) }) => {
            let shape = match dims[..] {
                [count, rows, cols] if count == experts && expert < experts && rows.is_multiple_of(pieces) => {
                    vec![rows / pieces, cols]
                }
                _ => return Err(bad(format!("must have {experts} experts of {pieces} parts, got {dims:?}"))),
            };
            let (size, part) = (bytes / (experts * pieces), expert * pieces + piece);
            (begin + part * size..begin + (part + 1) * size, shape)
        }
    };
    if let RowOrder::RotaryPairs { head_dim } = named.rows
        && (head_dim == 0 || head_dim % 2 != 0 || shape.first().is_none_or(|rows| rows % head_dim != 0))
    {
        return Err(bad(format!("{shape:?} must have rows of whole heads of {head_dim}")));
    }
    Ok(TensorEntry { dtype, shape, file: info.file, range, rows: named.rows, cols: named.cols, change: named.change })
}

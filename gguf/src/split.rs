//! A model in several files, as `llama-gguf-split` and the converter write them: NAME-00001-of-00003.gguf. It does not
//! open files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::GgufError;
use crate::container::{Gguf, MetadataValue};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Five digits in the names.
const MAX_FILES: u64 = 99_999;

/// The paths of all files of the model whose first file is `path` with the header `first`, in order.
pub fn split_files(path: &Path, first: &Gguf) -> Result<Vec<PathBuf>, GgufError> {
    let Some(count) = number(first, COUNT)?.filter(|&count| count > 1) else {
        return Ok(vec![path.to_owned()]);
    };
    if count > MAX_FILES {
        return Err(GgufError::invalid(COUNT, format!("must be at most {MAX_FILES}, got {count}")));
    }
    let no = number(first, NO)?.unwrap_or(0);
    let name = |no: u64| format!("-{:05}-of-{count:05}.gguf", no + 1);
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if no >= count {
        return Err(GgufError::invalid(NO, format!("must be below {COUNT}, {count}, got {no}")));
    }
    let Some(stem) = file.strip_suffix(name(no).as_str()) else {
        let what =
            format!("the file is part {} of {count}, so its name must end with {}, got {file}", no + 1, name(no));
        return Err(GgufError::invalid(NO, what));
    };
    if no != 0 {
        let what = format!("the file is part {} of {count}; give the first part, {stem}{}", no + 1, name(0));
        return Err(GgufError::invalid(NO, what));
    }
    Ok((0..count).map(|no| path.with_file_name(format!("{stem}{}", name(no)))).collect())
}

/// One header of the headers of all files, in the order of `split_files`. The metadata is that of the first file.
pub fn join_headers(files: Vec<Gguf>) -> Result<Gguf, GgufError> {
    let count = files.len();
    let mut files = files.into_iter();
    let Some(mut model) = files.next() else {
        return Err(GgufError::invalid("files", "must be at least one"));
    };
    let mut names: HashSet<String> = model.tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let stated = number(&model, COUNT)?.unwrap_or(1).max(1);
    if stated != count as u64 {
        return Err(GgufError::invalid(COUNT, format!("must be the number of files, {count}, got {stated}")));
    }
    for (i, file) in files.enumerate() {
        let part = i + 1;
        if number(&file, NO)? != Some(part as u64) || number(&file, COUNT)? != Some(stated) {
            let what = format!("file {} of {count} must have {NO} {part} and {COUNT} {count}", part + 1);
            return Err(GgufError::invalid(NO, what));
        }
        for mut tensor in file.tensors {
            if !names.insert(tensor.name.clone()) {
                return Err(GgufError::invalid(tensor.name, "the tensor is in two files; a name must appear once"));
            }
            tensor.file = part;
            model.tensors.push(tensor);
        }
    }
    match number(&model, TENSORS)? {
        Some(stated) if count > 1 && stated != model.tensors.len() as u64 => {
            let what = format!("is {stated}, but the files have {} tensors", model.tensors.len());
            Err(GgufError::invalid(TENSORS, what))
        }
        _ => Ok(model),
    }
}

fn number(gguf: &Gguf, key: &str) -> Result<Option<u64>, GgufError> {
    match gguf.metadata.get(key) {
        None => Ok(None),
        Some(&MetadataValue::Unsigned(n)) => Ok(Some(n)),
        Some(&MetadataValue::Signed(n)) if n >= 0 => Ok(Some(n.unsigned_abs())),
        Some(other) => Err(GgufError::invalid(key, format!("must be a whole number, got {}", other.kind_name()))),
    }
}

#[cfg(test)]
mod tests;

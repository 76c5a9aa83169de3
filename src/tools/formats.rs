//! `rein formats`: lists the tool-call formats. Also parses the values of `--format`. It knows no format by name.

use std::error::Error;
use std::io::{BufWriter, Write};
use std::path::Path;

use rein_grammar::{Format, by_name, formats, markdown};
use rein_text::regular_file;
use serde_json::Value;

use crate::args::FormatsArgs;

/// Bytes of a file that `--format` names.
const MAX_FORMAT_BYTES: u64 = 1 << 20;

pub fn run(args: &FormatsArgs) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.markdown {
        out.write_all(markdown().as_bytes())?;
    } else if args.json {
        let all: Vec<Value> = formats().iter().map(|f| f.describe().json()).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        for format in formats() {
            let d = format.describe();
            writeln!(out, "{}", d.name)?;
            let rows = [("names", d.aliases.join(", ")), ("models", d.models.join(", ")), ("ids", d.ids.to_owned())];
            for (what, text) in rows.iter().filter(|(_, text)| !text.is_empty()) {
                writeln!(out, "  {what:<10} {text}")?;
            }
            for guarantee in d.guarantees {
                writeln!(out, "  {:<10} {guarantee}", "")?;
            }
            for known in d.recommendations {
                let words = [known.sampling(), known.note.to_owned(), known.url()];
                let words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
                writeln!(out, "  {:<10} {}: {}", "", known.model, words.join("; "))?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// The format of a `--format` option: a name in the table, or a JSON file.
pub fn named(name: &str) -> Result<&'static Format, String> {
    if let Some(format) = by_name(name) {
        return Ok(format);
    }
    match regular_file::read_text(Path::new(name), "a format", MAX_FORMAT_BYTES) {
        Ok(text) => Format::from_json(&text).map_err(|e| format!("--format: {name}: {e}")),
        Err(error) => {
            let names: Vec<&str> = formats().iter().map(|f| f.name).collect();
            let names = names.join(", ");
            Err(format!("--format: {name}: cannot read the file ({error}); expected a JSON file or one of {names}"))
        }
    }
}

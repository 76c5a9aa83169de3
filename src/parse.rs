use std::error::Error;

use rein_grammar::{Format, by_name, formats};
use rein_router::parse::ParseSource;
use rein_router::render::answer_lines;

use crate::args::ParseArgs;

pub fn run(args: &ParseArgs) -> Result<(), Box<dyn Error>> {
    let source = ParseSource::new(format(&args.format)?, args.tokenizer.as_deref())?;
    answer_lines(std::io::stdin().lock(), std::io::stdout().lock(), |line| source.answer(line))?;
    Ok(())
}

/// A name of the table, else a file.
fn format(name: &str) -> Result<&'static Format, String> {
    if let Some(format) = by_name(name) {
        return Ok(format);
    }
    match std::fs::read_to_string(name) {
        Ok(text) => Format::from_json(&text).map_err(|e| format!("--format: {name}: {e}")),
        Err(error) => {
            let names: Vec<&str> = formats().iter().map(|f| f.name).collect();
            Err(format!("--format: {name} is no file ({error}) and none of {}", names.join(", ")))
        }
    }
}

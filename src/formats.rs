use std::error::Error;
use std::io::{BufWriter, Write};

use rein_grammar::{formats, markdown};
use serde_json::Value;

use crate::args::FormatsArgs;

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
        }
    }
    out.flush()?;
    Ok(())
}

use std::error::Error;

use rein_router::parse::{ParseSource, written};
use rein_router::render::answer_lines;

use crate::args::ParseArgs;

pub fn run(args: &ParseArgs) -> Result<(), Box<dyn Error>> {
    let format = crate::formats::named(&args.format)?;
    let (lines, out) = (std::io::stdin().lock(), std::io::stdout().lock());
    if args.render {
        answer_lines(lines, out, |line| written(format, line))?;
    } else {
        let source = ParseSource::new(format, args.tokenizer.as_deref())?;
        answer_lines(lines, out, |line| source.answer(line))?;
    }
    Ok(())
}

use std::error::Error;

use rein_router::parse::ParseSource;
use rein_router::render::answer_lines;

use crate::args::ParseArgs;

pub fn run(args: &ParseArgs) -> Result<(), Box<dyn Error>> {
    let source = ParseSource::new(crate::formats::named(&args.format)?, args.tokenizer.as_deref())?;
    answer_lines(std::io::stdin().lock(), std::io::stdout().lock(), |line| source.answer(line))?;
    Ok(())
}

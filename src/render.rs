use std::error::Error;

use rein_router::render::{RenderSource, run as render};

use crate::args::RenderArgs;

pub fn run(args: &RenderArgs) -> Result<(), Box<dyn Error>> {
    let source = RenderSource::load(
        args.model.as_deref(),
        args.template.as_deref(),
        args.tokenizer.as_deref(),
        args.now.as_deref(),
    )?;
    render(std::io::stdin().lock(), std::io::stdout().lock(), &source)?;
    Ok(())
}

use std::error::Error;

use rein_router::render::{RenderSource, run as render};
use rein_router::textmodel::Overrides;

use crate::args::RenderArgs;

pub fn run(args: &RenderArgs) -> Result<(), Box<dyn Error>> {
    let overrides =
        Overrides { template: args.template.clone(), tokenizer: args.tokenizer.clone(), ..Overrides::from_env()? };
    let source = match &args.model {
        Some(dir) => RenderSource::model(dir, &overrides)?,
        None => RenderSource::parts(&overrides)?,
    };
    render(std::io::stdin().lock(), std::io::stdout().lock(), &source)?;
    Ok(())
}

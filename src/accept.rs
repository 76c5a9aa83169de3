use std::error::Error;

use rein_router::accept::{AcceptSource, run as accept};

use crate::args::AcceptArgs;

pub fn run(args: &AcceptArgs) -> Result<(), Box<dyn Error>> {
    let source = AcceptSource::open(crate::formats::named(&args.format)?, &args.tokenizer)?;
    accept(std::io::stdin().lock(), std::io::stdout().lock(), &source)?;
    Ok(())
}

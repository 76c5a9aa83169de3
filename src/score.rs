//! `rein score`: log-probabilities of given token ids.

use std::error::Error;
use std::io::{Read, Write};

use rein_worker::score::score_with_progress;

use crate::args::{EngineKind, EngineTask, ScoreArgs};
use crate::load;

pub fn run(args: &ScoreArgs) -> Result<(), Box<dyn Error>> {
    let text = if args.tokens.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(&args.tokens)
            .map_err(|e| format!("--tokens: cannot read {}: {e}", args.tokens.display()))?
    };
    let tokens: Vec<u32> =
        serde_json::from_str(&text).map_err(|e| format!("--tokens: not a JSON array of token ids: {e}"))?;
    if args.on.engine == EngineKind::Sim {
        return Err("--engine: must be cpu or cuda; the sim engine has no weights".into());
    }
    let devices = load::devices(&args.on, args.model.tp)?;
    load::text_files(&args.model.weights, EngineTask::Generate)?;
    let options = load::options(&args.model, devices);
    let output =
        load::with_progress(|progress| score_with_progress(&args.model.weights.model, &options, &tokens, progress))?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&output)?)?;
    Ok(())
}

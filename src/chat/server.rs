//! The server that answers: one that is there, or `rein serve` as a child that ends with this process.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rein_measure::client::{ClientError, Endpoint, with_version};

use crate::args::AskArgs;

const DEFAULT_URL: &str = "http://127.0.0.1:8000";
const LISTENS: &str = "rein: http listening on ";

pub struct ModelServer {
    pub endpoint: Endpoint,
    pub url: String,
    pub model: String,
    // Dropped with its input, which ends it.
    _engine: Option<Engine>,
}

/// A child that serves a model. It ends when its input is closed, also if this process is killed.
struct Engine {
    child: Child,
    input: Option<ChildStdin>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

impl ModelServer {
    pub async fn open(start: Option<&Path>, args: &AskArgs) -> Result<Self, Box<dyn Error>> {
        if start.is_none() && !args.serve.is_empty() {
            return Err("options of `rein serve` need a MODEL to start".into());
        }
        let engine = start.map(|model| Engine::start(model, &args.serve)).transpose()?;
        let (url, engine) = match engine {
            Some((engine, url)) => (url, Some(engine)),
            None => (args.base_url.clone().unwrap_or_else(|| DEFAULT_URL.into()), None),
        };
        let url = with_version(&url);
        let key = args.api_key.as_deref().filter(|_| engine.is_none());
        let timeout = Duration::from_secs_f64(args.timeout);
        let endpoint = Endpoint::new(&url, key, args.ca_file.as_deref(), timeout)?;
        let model = match (&args.model, endpoint.first_model().await) {
            (Some(model), _) => model.clone(),
            (None, Ok(model)) => model,
            (None, Err(ClientError::Models { reason, .. })) if args.base_url.is_none() && engine.is_none() => {
                let how = "give a model (`rein chat Qwen/Qwen3-0.6B`), or --base-url of a server";
                return Err(format!("no server at {DEFAULT_URL} ({reason}): {how}").into());
            }
            (None, Err(error)) => return Err(error.into()),
        };
        Ok(ModelServer { endpoint, url, model, _engine: engine })
    }
}

impl Engine {
    /// Waits until it serves. Loading shows its progress on standard error.
    fn start(model: &Path, options: &[String]) -> Result<(Self, String), Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg("--model").arg(model).args(options);
        command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--until-stdin-ends"]);
        if std::env::var_os("REIN_LOG").is_none() {
            command.env("REIN_LOG", "error");
        }
        // Of its own group, so that Ctrl-C ends an answer and not the server.
        let mut child = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let engine = Engine { child, input };
        let mut output = BufReader::new(output.ok_or("the server has no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let Some(url) = line.strip_prefix(LISTENS) else { return Err("the model is not served; see above".into()) };
        // Nobody reads the rest, but a full pipe would stop the server.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Ok((engine, url.trim().to_owned()))
    }
}

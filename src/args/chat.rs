//! Options of `rein chat` and `rein run`.

use std::path::PathBuf;

use clap::Args;

use crate::option_values;

/// Which server answers, and how.
#[derive(Debug, Clone, Args)]
pub struct AskArgs {
    /// URL of a server that is there already, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Name of the model in the server's list [default: its first]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// API key, sent as a bearer token
    #[arg(long, env = "OPENAI_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File with certificates (PEM) to trust in addition to the public authorities
    #[arg(long, env = "SSL_CERT_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// JSON file with an array of tools in OpenAI's form (`{"type": "function", "function": {...}}`), or of their
    /// functions
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Sampling temperature [default: the server's]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Maximum number of tokens of an answer [default: what the context leaves]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// Seed of the sampling [default: random]
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// JSON object whose members are added to each request, such as {"reasoning_effort": "low"}
    #[arg(long, value_name = "JSON", value_parser = rein_measure::option_values::object)]
    pub extra: Option<serde_json::Map<String, serde_json::Value>>,
    /// Seconds without an answer after which a request counts as failed
    #[arg(long, value_name = "S", default_value = "3600", value_parser = option_values::deadline)]
    pub timeout: f64,
    /// Options of `rein serve` for the model that is started, such as `-- --engine cuda --tp 2`
    #[arg(last = true, value_name = "SERVE OPTIONS")]
    pub serve: Vec<String>,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  rein chat Qwen/Qwen3-0.6B\n  rein chat --base-url http://127.0.0.1:8000 --example-tools\n\nIn the chat, /help lists the commands."
)]
pub struct ChatArgs {
    /// Model to start for this chat (a directory, or ORG/NAME of the Hub) or URL of a server [default: the server of
    /// --base-url, or the one at http://127.0.0.1:8000]
    #[arg(value_name = "MODEL", conflicts_with = "base_url")]
    pub start: Option<PathBuf>,
    /// Give the model two tools that this program runs: the time, and dice
    #[arg(long, conflicts_with = "tools")]
    pub example_tools: bool,
    #[command(flatten)]
    pub ask: AskArgs,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  rein run Qwen/Qwen3-0.6B 'Name three rivers.'\n  rein run --base-url http://127.0.0.1:8000 'Summarize:' < report.txt\n  rein run Qwen/Qwen3-0.6B 'Who is it about?' --schema person.json < article.txt\n\nThe answer goes to standard output; each tool call is a line of JSON. The exit code is 1 if there is no answer, or if --schema is given and the answer was cut."
)]
pub struct RunArgs {
    /// Model to start (a directory, or ORG/NAME of the Hub) or URL of a server [default: the server of --base-url, or
    /// the one at http://127.0.0.1:8000]; then the prompt. What standard input has follows the prompt; `-` is standard
    /// input alone
    #[arg(value_name = "[MODEL] PROMPT", num_args = 1..=2, required = true)]
    pub words: Vec<String>,
    /// JSON Schema that the answer must satisfy
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Print the reasoning on standard error
    #[arg(long)]
    pub reasoning: bool,
    /// Print the server's whole response as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub ask: AskArgs,
}

//! `rein check --live` and `rein serve --check-live`: asks a loaded model a dozen tool questions, with and without
//! enforcement, and says what became of its calls. It judges the model's format and what enforcement does, not answers.

mod answers;

use futures::{StreamExt, stream};
use rein_grammar::Format;
use rein_text::check::{CheckReport, Finding, Verdict};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{self, Endpoint, ReusedConnection};
use answers::Answers;

const QUESTIONS: &str = include_str!("questions.json");
const TOOLS: &str = include_str!("tools.json");
/// Most tokens of an answer if the user does not say: room for reasoning.
pub const TOKENS: u32 = 512;
/// Questions that are asked at once.
const AT_ONCE: usize = 4;
/// A demanded call may take as many times the tokens that the format itself writes.
const FINE_TOKENS: f64 = 1.5;

/// What is asked: a router of this process, or a server.
pub enum Asked {
    Router(axum::Router),
    Server(Box<Endpoint>),
}

/// A model's name, and its format as the server names it.
#[derive(Debug, Clone, Deserialize)]
pub struct Served {
    pub id: String,
    #[serde(default)]
    pub format: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Question {
    question: String,
    /// The tools that a right answer calls.
    calls: Vec<String>,
    /// Names of the declared tools.
    tools: Vec<String>,
}

impl Question {
    fn read() -> Result<(Vec<Question>, Vec<Value>), String> {
        let wrong = |error: serde_json::Error| error.to_string();
        Ok((serde_json::from_str(QUESTIONS).map_err(wrong)?, serde_json::from_str(TOOLS).map_err(wrong)?))
    }

    fn declared(&self, tools: &[Value]) -> Vec<Value> {
        let named = |tool: &&Value| self.tools.iter().any(|name| tool["function"]["name"] == **name);
        tools.iter().filter(named).cloned().collect()
    }
}

impl Asked {
    /// The first model that it serves.
    pub async fn first_model(&self) -> Result<Served, String> {
        let list = self.send("/v1/models", None).await?;
        let first = list["data"].get(0).ok_or("the server lists no model")?;
        Served::deserialize(first).map_err(|error| format!("/v1/models: {error}"))
    }

    async fn send(&self, path: &str, body: Option<Value>) -> Result<Value, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        let bytes = match self {
            Asked::Router(router) => oneshot(router.clone(), path, body).await.map_err(|error| failed(&error))?,
            Asked::Server(endpoint) => {
                let mut connection = ReusedConnection::new(endpoint);
                let read = async |response, _| client::collect(response).await;
                let sent = match body {
                    Some(body) => connection.ask(path, body.to_string().into(), read).await,
                    None => connection.get(path).await,
                };
                sent.map_err(|error| failed(&error))?
            }
        };
        serde_json::from_slice(&bytes).map_err(|error| failed(&error))
    }
}

async fn oneshot(router: axum::Router, path: &str, body: Option<Value>) -> Result<bytes::Bytes, String> {
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    let request = match body {
        Some(body) => http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(axum::body::Body::from(body.to_string())),
        None => http::Request::get(path).body(axum::body::Body::empty()),
    };
    let request = request.map_err(|error| error.to_string())?;
    let response = router.oneshot(request).await.map_err(|error| error.to_string())?;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    if status.is_success() { Ok(bytes) } else { Err(format!("HTTP {status}: {}", client::error_text(&bytes))) }
}

/// Asks the first model the questions, and judges its answers. `format`: if the server does not name a format of the
/// table. `tokens`: most tokens of an answer.
pub async fn report(asked: &Asked, format: Option<&'static Format>, tokens: u32) -> Result<CheckReport, String> {
    let model = asked.first_model().await?;
    let format = format.or_else(|| rein_grammar::by_name(&model.format)).ok_or_else(|| {
        format!("the server's format {:?} is not in the table of this version; set --format", model.format)
    })?;
    let findings = findings(&ask(asked, &model, format, tokens).await?, format);
    Ok(CheckReport { model: model.id, format: format.name, template_sha256: None, revision: None, findings })
}

async fn ask(asked: &Asked, model: &Served, format: &'static Format, tokens: u32) -> Result<Vec<Answers>, String> {
    let (questions, tools) = Question::read()?;
    let tools = &tools;
    let ask =
        async |question: Question| Answers::ask(asked, model, format, question.declared(tools), question, tokens).await;
    let answers: Vec<Result<Answers, String>> = stream::iter(questions).map(ask).buffered(AT_ONCE).collect().await;
    answers.into_iter().collect()
}

fn findings(answers: &[Answers], format: &'static Format) -> Vec<Finding> {
    let count = |holds: &dyn Fn(&Answers) -> bool| answers.iter().filter(|answer| holds(answer)).count();
    let calls = |of: &dyn Fn(&Answers) -> usize| answers.iter().map(of).sum::<usize>();
    let finding = |check, verdict, message| Finding { check, verdict, message };
    let when = |bad: bool, verdict| if bad { verdict } else { Verdict::Fine };

    let (wanted, right) = (count(&|a| a.wants_call), count(&|a| a.wants_call && a.auto.right));
    let (valid, wrong) = (calls(&|a| a.auto.valid), calls(&|a| a.auto.invalid));
    let lost = count(&|a| a.lost);
    let plain = calls(&|a| a.plain.valid);
    let changed: Vec<&str> = answers.iter().filter(|a| a.changed).map(|a| a.question.as_str()).collect();
    let long = count(&|a| a.auto.cut && !a.plain.cut);
    let required = count(&|a| a.required.is_some());
    let demanded = || answers.iter().filter_map(|a| a.required.as_ref());
    let (kept, missed) = (
        demanded().filter(|r| r.valid > 0 && r.invalid == 0).count(),
        demanded().filter(|r| !r.cut && r.valid == 0).count(),
    );
    let costs: Vec<(usize, usize)> = demanded().filter(|r| !r.cut).filter_map(|r| r.cost).collect();
    let (spent, natural) = costs.iter().fold((0, 0), |(a, b), (spent, natural)| (a + spent, b + natural));
    let ratio = if natural > 0 { spent as f64 / natural as f64 } else { 1.0 };

    let mut found = vec![
        finding(
            "live calls",
            when(wrong > 0, Verdict::Broken).max(when(wanted > 0 && valid == 0, Verdict::Warning)),
            format!(
                "{valid} valid and {wrong} invalid calls in {} answers; {right} of {wanted} questions for a tool got calls of the right ones",
                answers.len()
            ),
        ),
        finding(
            "live lost",
            when(lost > 0, Verdict::Broken),
            format!("{lost} answers have a call of a declared tool as text, which {} does not read", format.name),
        ),
        finding(
            "live changed",
            when(!changed.is_empty(), Verdict::Warning),
            match changed.first() {
                None => "enforcement changed no answer that was valid without it".to_owned(),
                Some(first) => format!(
                    "enforcement changed {} answers that were valid without it, such as to {first:?}",
                    changed.len()
                ),
            },
        ),
        finding(
            "live length",
            when(long > 0, Verdict::Warning),
            format!("{} answers ended by length; {long} of them end without enforcement", count(&|a| a.auto.cut)),
        ),
    ];
    if required > 0 {
        found.push(finding(
            "live required",
            when(missed > 0, Verdict::Broken).max(when(kept == 0, Verdict::Warning)),
            format!(
                "{kept} of {required} answers that must call a tool have valid calls only; {} ended by length",
                demanded().filter(|r| r.cut).count()
            ),
        ));
    }
    if natural > 0 {
        found.push(finding(
            "live tokens",
            when(ratio > FINE_TOKENS, Verdict::Warning),
            format!("demanded calls took {spent} tokens where {} itself takes {natural}", format.name),
        ));
    }
    found.push(best_format(answers, format, plain));
    found
}

/// Which format of the table reads the most calls of the answers without enforcement.
fn best_format(answers: &[Answers], format: &'static Format, own: usize) -> Finding {
    let reads = |other: &'static Format| answers.iter().map(|answer| answer.read_by(other)).sum::<usize>();
    // Of equal ones, first those that also read the tags that templates teach, then the order of the table.
    let ranked = rein_grammar::formats().iter().map(|other| ((reads(other), other.opens), other));
    let best = ranked.rev().max_by_key(|(rank, _)| *rank).map(|((calls, _), best)| (calls, best));
    let check = "live format";
    match best {
        Some((calls, best)) if calls > own => Finding {
            check,
            verdict: Verdict::Warning,
            message: format!(
                "{} reads {calls} valid calls of the answers without enforcement, {} reads {own}: try --format {}",
                best.name, format.name, best.name
            ),
        },
        _ => Finding {
            check,
            verdict: Verdict::Fine,
            message: format!(
                "{} reads {own} valid calls of the answers without enforcement; no format reads more",
                format.name
            ),
        },
    }
}

/// The body of a chat, without what the mode adds.
fn chat(model: &Served, question: &Question, tools: &[Value]) -> Value {
    json!({"model": model.id, "messages": [{"role": "user", "content": question.question}], "tools": tools})
}

#[cfg(test)]
mod tests;

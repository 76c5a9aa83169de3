//! `rein chat` and `rein run`: a conversation in the terminal, and one question in a script. They know a server only by
//! its API, and start `rein serve` if they are given a model.

mod answer;
mod conversation;
mod lines;
mod screen;
mod server;
mod tools;

use std::error::Error;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use self::answer::{Answer, AnswerPiece, AskedCall};
use self::conversation::{Conversation, LineMeaning};
use self::lines::{Line, Lines};
use self::screen::Screen;
use self::server::ModelServer;
use crate::args::{AskArgs, ChatArgs, RunArgs};
use crate::terminal;

/// Calls in a row without a question of the user.
const MOST_ROUNDS: usize = 20;

pub fn chat(args: &ChatArgs) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut conversation = Conversation::new(&args.ask, args.example_tools)?;
    let url = args.start.as_deref().and_then(Path::to_str).filter(|start| is_url(start));
    let start = args.start.as_deref().filter(|_| url.is_none());
    let ask = AskArgs { base_url: url.map(str::to_owned).or(args.ask.base_url.clone()), ..args.ask.clone() };
    let server = runtime.block_on(ModelServer::open(start, &ask))?;
    let (mut screen, mut lines) = (Screen::new(), Lines::open()?);
    if lines.is_edited() {
        screen.note(&format!("{} at {}. /help lists the commands, Ctrl-D leaves.", server.model, server.url));
    }
    loop {
        let line = match lines.read("> ")? {
            Line::End => break,
            Line::Cancelled => continue,
            Line::Text(line) if line.trim().is_empty() => continue,
            Line::Text(line) => line,
        };
        match conversation.read(line.trim()) {
            LineMeaning::Leave => break,
            LineMeaning::Say(text) => screen.note(&text),
            LineMeaning::Ask => {
                screen.hides_reasoning = conversation.hides_reasoning;
                answer_question(&runtime, &server, &mut conversation, &mut screen, &mut lines)?;
            }
        }
    }
    Ok(())
}

/// Answers the last question, and runs the tools that the answer calls.
fn answer_question(
    runtime: &tokio::runtime::Runtime,
    server: &ModelServer,
    conversation: &mut Conversation,
    screen: &mut Screen,
    lines: &mut Lines,
) -> Result<(), Box<dyn Error>> {
    for _ in 0..MOST_ROUNDS {
        let request = conversation.request(&server.model);
        let (mut answer, began) = (Answer::default(), Instant::now());
        let received = runtime.block_on(async {
            tokio::select! {
                received = answer.receive(server, &request, |piece| screen.piece(piece)) => Some(received),
                _ = tokio::signal::ctrl_c() => None,
            }
        });
        screen.end();
        match received {
            // The question stays, for /retry.
            Some(Err(problem)) => {
                screen.problem(&problem);
                return Ok(());
            }
            None => {
                screen.note("(ended)");
                // A call that was cut cannot stand in a history.
                answer.calls.clear();
            }
            Some(Ok(())) => {
                if let (Some(tokens), true) = (answer.tokens, lines.is_edited()) {
                    let seconds = began.elapsed().as_secs_f64();
                    let cut =
                        if answer.finish_reason.as_deref() == Some("length") { ", cut by its length" } else { "" };
                    screen.note(&format!("{tokens} tokens, {seconds:.1} s{cut}"));
                }
            }
        }
        answer.remarks.iter().for_each(|remark| screen.note(remark));
        conversation.messages.push(answer.message());
        if answer.calls.is_empty() {
            return Ok(());
        }
        for call in &answer.calls {
            let Some(result) = result_of(call, screen, lines)? else {
                // A call without a result cannot stand in a history either.
                conversation.read("/undo");
                screen.note("taken back: a call needs its result");
                return Ok(());
            };
            conversation.add_result(call, &result);
        }
    }
    screen.problem(&format!("{MOST_ROUNDS} answers in a row were calls; ask again to go on"));
    Ok(())
}

/// The result of a call. None: the user gives none.
fn result_of(call: &AskedCall, screen: &mut Screen, lines: &mut Lines) -> Result<Option<String>, Box<dyn Error>> {
    if let Some(result) = tools::run_example(&call.name, &call.arguments) {
        screen.note(&format!("← {result}"));
        return Ok(Some(result));
    }
    match lines.read(&format!("result of {}> ", call.name))? {
        Line::Text(result) => Ok(Some(result)),
        Line::Cancelled | Line::End => Ok(None),
    }
}

pub fn run(args: &RunArgs) -> Result<(), Box<dyn Error>> {
    let mut ask = args.ask.clone();
    let (start, prompt) = match args.words.as_slice() {
        [prompt] => (None, prompt),
        [url, prompt] if is_url(url) && ask.base_url.is_none() => {
            ask.base_url = Some(url.clone());
            (None, prompt)
        }
        [model, prompt] if ask.base_url.is_none() => (Some(Path::new(model)), prompt),
        _ => return Err("with --base-url, expected PROMPT alone; --model names a model of the server".into()),
    };
    let prompt = with_input(prompt)?;
    let mut conversation = Conversation::new(&ask, false)?;
    conversation.add_user(&prompt);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let server = ModelServer::open(start, &ask).await?;
        let mut request = conversation.request(&server.model);
        if let Some(path) = &args.schema {
            let bad = |error: &dyn std::fmt::Display| format!("--schema: {}: {error}", path.display());
            let text = std::fs::read_to_string(path).map_err(|error| bad(&error))?;
            let schema: Value = serde_json::from_str(&text).map_err(|error| bad(&error))?;
            request["response_format"] =
                json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
        }
        let mut answer = Answer::default();
        let mut out = std::io::stdout();
        let mut broken = None;
        let mut write = |text: &str| {
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            broken = broken.take().or(written.err());
        };
        let received = answer.receive(&server, &request, |piece| match piece {
            AnswerPiece::Text(text) if !args.json => write(text),
            AnswerPiece::Reasoning(text) if args.reasoning => {
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
            _ => {}
        });
        received.await?;
        if let Some(error) = broken {
            return Err(error.into());
        }
        if args.json {
            let whole =
                json!({"model": server.model, "message": answer.message(), "finish_reason": answer.finish_reason});
            terminal::out(whole);
        } else {
            if !answer.text.is_empty() {
                terminal::out("");
            }
            for call in &answer.calls {
                let arguments = serde_json::from_str::<Value>(&call.arguments);
                let arguments = arguments.unwrap_or_else(|_| call.arguments.as_str().into());
                terminal::out(json!({"name": call.name, "arguments": arguments}));
            }
        }
        answer.remarks.iter().for_each(|remark| terminal::err(format_args!("rein: {remark}")));
        let cut = answer.finish_reason.as_deref() == Some("length");
        match (answer.text.trim().is_empty() && answer.calls.is_empty(), args.schema.is_some()) {
            (true, _) if cut => Err("there is no answer: its length was reached before; see --max-tokens".into()),
            (true, _) => Err("there is no answer: the model said nothing".into()),
            (false, true) if cut => Err("the answer was cut by its length: it does not satisfy --schema".into()),
            (false, _) => {
                if cut {
                    terminal::err("rein: the answer was cut by its length; see --max-tokens");
                }
                Ok(())
            }
        }
    })
}

/// Whether somebody means a server and no model.
fn is_url(word: &str) -> bool {
    word.starts_with("http://") || word.starts_with("https://")
}

/// The prompt, and what standard input has if it is no terminal.
fn with_input(prompt: &str) -> Result<String, Box<dyn Error>> {
    let mut input = String::new();
    if prompt == "-" || !std::io::stdin().is_terminal() {
        std::io::stdin().read_to_string(&mut input).map_err(|error| format!("standard input: {error}"))?;
    }
    let whole = match (prompt, input.trim_end()) {
        ("-", input) => input.to_owned(),
        (prompt, "") => prompt.to_owned(),
        (prompt, input) => format!("{prompt}\n\n{input}"),
    };
    if whole.trim().is_empty() { Err("the prompt is empty".into()) } else { Ok(whole) }
}

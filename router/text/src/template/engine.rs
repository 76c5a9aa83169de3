//! Configures minijinja to behave like the Jinja2 environment of transformers, with limits on time and output. It knows
//! no messages.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use chrono::NaiveDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use serde_json::{Map, Value as Json};

use super::cpu_time::{self, CpuTimeExceeded};
use super::error::{Reason, TemplateError};
use super::{MAX_PROMPT_BYTES, MAX_TEMPLATE_BYTES, TemplateOptions, filters, generators, methods, python, rewrite};

#[derive(Debug)]
pub(super) struct Engine {
    env: Environment<'static>,
    special_tokens: Map<String, Json>,
}

/// The error of `raise_exception`, with which a template rejects a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Parses a fixed time: `2026-01-31`, `2026-01-31T12:00:00` or `2026-01-31 12:00:00`. A time zone offset is ignored.
pub fn parse_now(text: &str) -> Option<NaiveDateTime> {
    let text = text.trim();
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        return Some(time.naive_local());
    }
    let formats = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M"];
    formats
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
        .or_else(|| chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().and_then(|date| date.and_hms_opt(0, 0, 0)))
}

impl Engine {
    pub fn new(options: TemplateOptions) -> Self {
        let mut env = Environment::new();
        env.set_auto_escape_callback(|_| AutoEscape::None);
        set_syntax(&mut env);
        env.set_fuel(Some(options.fuel));
        env.set_unknown_method_callback(methods::call);
        env.set_formatter(format);
        filters::register(&mut env);
        generators::register(&mut env, options.cpu_time);
        cpu_time::register(&mut env, options.cpu_time);
        env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
            let message = python::str_of(message);
            Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
        });
        let now = options.now;
        env.add_function("strftime_now", move |format: &str| strftime(now, format));
        env.add_function("cycler", |items: minijinja::value::Rest<Value>| {
            minijinja_contrib::globals::cycler(items.to_vec())
        });
        env.add_function("joiner", minijinja_contrib::globals::joiner);
        Engine { env, special_tokens: options.special_tokens }
    }

    pub fn special_tokens(&self) -> &Map<String, Json> {
        &self.special_tokens
    }

    pub fn add(&mut self, name: &str, source: &str) -> Result<(), TemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::new(
                Reason::TooLarge,
                format!("a chat template may have at most {MAX_TEMPLATE_BYTES} bytes, got {}", source.len()),
            ));
        }
        let rewritten = rewrite::rewrite(source).map_err(|message| TemplateError::new(Reason::TooLarge, message))?;
        let added = catch_panics(|| self.env.add_template_owned(name.to_owned(), rewritten));
        match added {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.explain(&error, source, Reason::Syntax)),
            Err(panic) => Err(TemplateError::new(Reason::Syntax, format!("the chat template does not parse: {panic}"))),
        }
    }

    /// The variables and functions that a template reads in any branch; `None` if they cannot be determined.
    pub fn reads(source: &str) -> Option<HashSet<String>> {
        let source = rewrite::printing_assignments(&rewrite::rewrite(source).ok()?);
        let read = catch_panics(|| {
            let mut env = Environment::new();
            set_syntax(&mut env);
            env.add_template_owned("", source)?;
            Ok::<_, Error>(env.get_template("")?.undeclared_variables(false))
        });
        read.ok()?.ok()
    }

    pub fn render(&self, name: &str, source: &str, context: Value) -> Result<String, TemplateError> {
        let rendered = catch_panics(|| {
            let template = self.env.get_template(name)?;
            let mut prompt = Prompt(Vec::with_capacity(4096));
            template.render_captured_to(context, &mut prompt)?;
            Ok(prompt.0)
        });
        match rendered {
            Ok(Ok(bytes)) => String::from_utf8(bytes)
                .map_err(|_| TemplateError::new(Reason::Failed, "the chat template produced text that is not UTF-8")),
            Ok(Err(error)) => Err(self.explain(&error, source, Reason::Failed)),
            Err(panic) => Err(TemplateError::new(
                Reason::Failed,
                format!("the template engine panicked on this conversation: {panic}"),
            )),
        }
    }

    /// Converts an error of the engine; the message has the line of the template.
    fn explain(&self, error: &Error, source: &str, reason: Reason) -> TemplateError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
        while let Some(inner) = cause {
            if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
                return TemplateError::new(Reason::Raised, message.clone());
            }
            if let Some(CpuTimeExceeded(most)) = inner.downcast_ref() {
                let message = format!(
                    "the chat template cannot render these messages within its limit of {most:?} of CPU time; send fewer \
                     or shorter messages"
                );
                return TemplateError { reason: Reason::CpuTime, ..TemplateError::input("messages", message) };
            }
            cause = inner.source();
        }
        match error.kind() {
            ErrorKind::OutOfFuel => {
                let fuel = self.env.fuel().unwrap_or_default();
                return TemplateError::new(
                    Reason::Fuel,
                    format!("the chat template exceeded the limit of {fuel} instructions on this conversation"),
                );
            }
            ErrorKind::WriteFailure => {
                return TemplateError::new(
                    Reason::TooLarge,
                    format!("the rendered prompt is longer than the limit of {MAX_PROMPT_BYTES} bytes"),
                );
            }
            _ => {}
        }
        let mut message = format!("the chat template failed: {}", error.kind());
        if reason == Reason::Syntax {
            message = "the chat template does not parse".to_owned();
        }
        if let Some(detail) = error.detail() {
            let _ = write!(message, ": {detail}");
        }
        if let Some(number) = error.line() {
            let _ = write!(message, " (line {number}");
            if let Some(line) = source.lines().nth(number - 1) {
                let _ = write!(message, ": {}", line.trim().chars().take(160).collect::<String>());
            }
            message.push(')');
        }
        TemplateError::new(reason, message)
    }
}

fn set_syntax(env: &mut Environment<'_>) {
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
}

/// Runs engine code and catches a panic. Some inputs make the engine panic, such as reversing an empty sequence by a
/// slice.
fn catch_panics<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("unknown cause").to_owned()
    })
}

/// Prints a value as Jinja2 does.
fn format(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python::str_of(value)),
    };
    written.map_err(|_| Error::from(ErrorKind::WriteFailure))
}

/// Formats the time. A conversion that chrono does not support is copied, as the C library does.
fn strftime(now: Option<NaiveDateTime>, format: &str) -> Result<String, Error> {
    let now = now.unwrap_or_else(|| chrono::Local::now().naive_local());
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let flags = rest[1..].find(|c| !"-_0^#".contains(c)).unwrap_or(rest.len() - 1);
        let end = rest[1 + flags..].chars().next().map_or(rest.len(), |c| 1 + flags + c.len_utf8());
        let (item, after) = rest.split_at(end);
        rest = after;
        match item {
            // Python prints nothing for the zone of a naive time.
            "%z" | "%Z" => {}
            "%f" => out.push_str(&now.format("%6f").to_string()),
            item => {
                let length = out.len();
                if write!(out, "{}", now.format(item)).is_err() {
                    out.truncate(length);
                    out.push_str(item);
                }
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Collects the prompt; fails above the size limit.
struct Prompt(Vec<u8>);

impl io::Write for Prompt {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_PROMPT_BYTES {
            return Err(io::Error::other("prompt too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

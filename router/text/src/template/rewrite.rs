//! Rewrites the source of a template so that minijinja accepts what transformers accepts and evaluates it as Jinja2
//! does.
//!
//! - Line ends become `\n`.
//! - `{% generation %}`, which marks text for training and prints nothing, becomes `{% with %}`, which has the same
//!   scope.
//! - The iterable of each `for` goes through the filter `ITERATE`. Iterating over none is an error in Python, but would
//!   silently drop text in minijinja. A string becomes a sequence of known length.
//! - Each iteration of a `for` and of its `if` calls `CHECK_TIME`, which ends a render that takes too long.
//! - Expressions are rewritten by `expression`.
//! - `{% with a = 1, b = a %}` assigns both at the same time, so `b` is the outer `a`.
//! - `{% set ns.x = ... %}` inside a macro also reads `ns`, so that the engine passes `ns` to the macro.
//! - The newline after `{% raw %}` is kept.
//! - A macro that reads `varargs` or `kwargs` gets them as parameters, and a wrapper that fills them.

use super::cpu_time::CHECK_TIME;
use super::expression::{self, FilterContext, is_word};

/// Name of the filter that wraps every loop's iterable.
pub(super) const ITERATE: &str = "__iterate";
/// Name of the function that wraps a macro with `varargs` or `kwargs`.
pub(super) const VARIADIC: &str = "__variadic";

/// Most characters of one tag outside of its strings. The engine's stack grows with the number of operators.
const MAX_TAG_CODE: usize = 4096;
/// Most `elif` tags of one template. The engine nests each one in the one before.
const MAX_ELIF: usize = 512;

/// Rewrites the source of a template and keeps its line numbers. Source with a syntax error is copied, so that the
/// parser rejects it. The error names the limit that the source exceeds.
pub(super) fn rewrite(source: &str) -> Result<String, String> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 256);
    let mut rest = source.as_str();
    let mut macros = Vec::new();
    let context = FilterContext::of(rest);
    // Number of open call blocks; `macros` has the open macros.
    let mut call_blocks = 0_usize;
    let mut elifs = 0;
    while let Some((text, tag)) = next_tag(rest) {
        out.push_str(text);
        let Some(end) = tag_end(tag) else {
            out.push_str(tag);
            return Ok(out);
        };
        let (tag, after) = tag.split_at(end);
        rest = after;
        if tag.starts_with("{#") {
            out.push_str(tag);
            continue;
        }
        let (open, code, close) = whitespace_signs(&tag[2..tag.len() - 2]);
        let mut characters = 0;
        let too_long = |_, _| {
            characters += 1;
            characters > MAX_TAG_CODE
        };
        if scan(code, too_long).is_some() {
            return Err(format!("a tag of the chat template has more than {MAX_TAG_CODE} characters of code"));
        }
        if tag.starts_with("{{") {
            let code = expression::rewrite(code, &context, true);
            out.push_str(&format!("{{{{{open}{code}{close}}}}}"));
            continue;
        }
        let body = rewrite_statement(code, &context, call_blocks + macros.len() > 0);
        let body = format!("{open}{body}{close}");
        let body = body.as_str();
        let lead = body.len() - body.trim_start_matches(['-', '+']).trim_start().len();
        let word_len = body[lead..].find(|c: char| !is_word(c)).unwrap_or(body.len() - lead);
        let (before, word, tail) = (&body[..lead], &body[lead..lead + word_len], &body[lead + word_len..]);
        elifs += usize::from(word == "elif");
        if elifs > MAX_ELIF {
            return Err(format!("the chat template has more than {MAX_ELIF} elif tags"));
        }
        let replaced = match word {
            "generation" => format!("{{%{before}with{tail}%}}"),
            "endgeneration" => format!("{{%{before}endwith{tail}%}}"),
            "call" => {
                call_blocks += 1;
                format!("{{%{body}%}}")
            }
            "endcall" => {
                call_blocks = call_blocks.saturating_sub(1);
                format!("{{%{body}%}}")
            }
            "raw" if !body.ends_with(['-', '+']) => format!("{{%{body}+%}}"),
            "macro" => match variadic_macro(tail, rest) {
                Some((name, params, open)) => {
                    macros.push(Some((name, params)));
                    format!("{{%{before}macro{open}%}}")
                }
                None => {
                    macros.push(None);
                    format!("{{%{body}%}}")
                }
            },
            "endmacro" => {
                let sign = body.chars().next_back().filter(|c| matches!(c, '-' | '+')).map(String::from);
                let sign = sign.unwrap_or_default();
                match macros.pop().flatten() {
                    Some((name, params)) => {
                        format!("{{%{body}%}}{{% set {name} = {VARIADIC}({name}, {params}) {sign}%}}")
                    }
                    None => format!("{{%{body}%}}"),
                }
            }
            "for" => match iterable(tail) {
                Some((from, to)) => {
                    let filter = &tail[to..tail.len() - close.len()];
                    let filter = match filter.strip_prefix("if") {
                        Some(condition) => format!("if {CHECK_TIME}() and{condition}"),
                        None => filter.to_owned(),
                    };
                    format!(
                        "{{%{before}for{} ({})|{ITERATE} {filter}%}}{{% do {CHECK_TIME}() {close}%}}",
                        &tail[..from],
                        &tail[from..to]
                    )
                }
                None => format!("{{%{body}%}}"),
            },
            _ => format!("{{%{body}%}}"),
        };
        out.push_str(&replaced);
        if word == "raw" {
            let end = raw_end(rest).unwrap_or(rest.len());
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Adds to rewritten source a tag before each assignment that prints the assigned value. The engine can then report all
/// variables that a template reads; by itself it misses the `x` read in `{% set x = x or 1 %}`.
pub(super) fn printing_assignments(source: &str) -> String {
    let mut out = String::with_capacity(source.len() * 2);
    let mut rest = source;
    while let Some((text, tag)) = next_tag(rest) {
        out.push_str(text);
        let Some(end) = tag_end(tag) else { break };
        let (tag, after) = tag.split_at(end);
        let code = whitespace_signs(&tag[2..tag.len() - 2]).1.trim_start();
        let assigned = code.strip_prefix("set").or_else(|| code.strip_prefix("with")).filter(|_| tag.starts_with("{%"));
        if let Some((tail, at)) = assigned.and_then(|tail| Some((tail, code_end(tail, "=")?))) {
            out.push_str(&format!("{{{{ {} }}}}", &tail[at + 1..]));
        }
        out.push_str(tag);
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Splits the source at the next tag.
fn next_tag(source: &str) -> Option<(&str, &str)> {
    let open = source.find("{%").into_iter().chain(source.find("{{")).chain(source.find("{#")).min()?;
    Some(source.split_at(open))
}

fn tag_end(tag: &str) -> Option<usize> {
    match &tag[..2] {
        // The `#` that opens a comment does not close it: `{#}` is not closed.
        "{#" => tag[2..].find("#}").map(|i| i + 4),
        "{{" => code_end(&tag[2..], "}}").map(|i| i + 4),
        _ => code_end(&tag[2..], "%}").map(|i| i + 4),
    }
}

/// Splits the content of a tag into the signs for whitespace control and the code between them.
fn whitespace_signs(body: &str) -> (&str, &str, &str) {
    let signed = |at: usize| body.get(at..=at).filter(|c| matches!(*c, "-" | "+")).unwrap_or_default();
    let open = signed(0);
    let close = if body.len() > open.len() { signed(body.len() - 1) } else { "" };
    (open, &body[open.len()..body.len() - close.len()], close)
}

/// Rewrites the code of a statement tag. `captured`: the tag is inside a macro or a call block.
fn rewrite_statement(code: &str, context: &FilterContext, captured: bool) -> String {
    let lead = code.len() - code.trim_start().len();
    let end = code[lead..].find(|c| !is_word(c)).map_or(code.len(), |len| lead + len);
    let (before, word, tail) = (&code[..lead], &code[lead..end], &code[end..]);
    let tail = match word {
        "set" => {
            let Some(at) = code_end(tail, "=") else { return code.to_owned() };
            let (target, value) = (&tail[..=at], expression::rewrite(&tail[at + 1..], context, false));
            // The engine passes only variables that a macro reads, so read the namespace too.
            match target.split_once('.').filter(|_| captured) {
                Some((namespace, _)) => format!("{target} ({}) if true else {} ", value.trim(), namespace.trim()),
                None => format!("{target}{value}"),
            }
        }
        "with" => expression::rewrite(&simultaneous(tail), context, false),
        _ => expression::rewrite(tail, context, false),
    };
    format!("{before}{word}{tail}")
}

/// Joins the assignments of a `with` into one assignment of tuples.
fn simultaneous(tail: &str) -> String {
    let (mut names, mut values, mut left) = (Vec::new(), Vec::new(), tail);
    while !left.trim().is_empty() {
        let end = code_end(left, ",").unwrap_or(left.len());
        let Some(at) = code_end(&left[..end], "=") else { return tail.to_owned() };
        names.push(left[..at].trim());
        values.push(left[at + 1..end].trim());
        left = left[end..].trim_start_matches(',');
    }
    if names.len() < 2 || names.iter().any(|name| name.contains(|c| !is_word(c))) {
        return tail.to_owned();
    }
    format!(" ({}) = ({}) ", names.join(", "), values.join(", "))
}

/// Offset of `closer` in code, outside of strings and brackets.
fn code_end(code: &str, closer: &str) -> Option<usize> {
    scan(code, |at, depth| depth == 0 && code[at..].starts_with(closer))
}

/// First offset outside of strings at which `stop(offset, bracket depth)` holds.
fn scan(code: &str, mut stop: impl FnMut(usize, usize) -> bool) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for (at, c) in code.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None => {
                if stop(at, depth) {
                    return Some(at);
                }
                match c {
                    '"' | '\'' => quote = Some(c),
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
        }
    }
    None
}

/// For a macro whose body reads `varargs` or `kwargs`: its name, a list expression with the names of its parameters,
/// and its declaration with the two added.
fn variadic_macro(tail: &str, rest: &str) -> Option<(String, String, String)> {
    let body = &rest[..rest.find("endmacro")?];
    let reads = |name: &str| {
        body.match_indices(name)
            .any(|(at, _)| !body[..at].ends_with(is_word) && !body[at + name.len()..].starts_with(is_word))
    };
    if !reads("varargs") && !reads("kwargs") {
        return None;
    }
    let (name, params) = tail.split_once('(')?;
    let close = code_end(params, ")")?;
    let (declared, after) = (params[..close].trim(), &params[close + 1..]);
    let mut names = Vec::new();
    let mut left = declared;
    while !left.is_empty() {
        let end = code_end(left, ",").unwrap_or(left.len());
        names.push(format!("'{}'", left[..end].split('=').next().unwrap_or_default().trim()));
        left = left[end..].trim_start_matches(',').trim_start();
    }
    let comma = if declared.is_empty() { "" } else { ", " };
    let open = format!("{name}({}{comma}varargs=[], kwargs={{}}){after}", declared.trim_end_matches(','));
    Some((name.trim().to_owned(), format!("[{}]", names.join(", ")), open))
}

/// Range of the iterable expression in what follows `for`: after the first `in`, up to a filter, `recursive` or the
/// end.
fn iterable(tail: &str) -> Option<(usize, usize)> {
    let word = |code: &str, at: usize, word: &str| {
        code[at..].starts_with(word)
            && !code[..at].ends_with(is_word)
            && !code[..at].ends_with('.')
            && !code[at + word.len()..].starts_with(is_word)
    };
    let from = scan(tail, |at, depth| depth == 0 && word(tail, at, "in"))? + 2;
    let expression = &tail[from..];
    let end =
        scan(expression, |at, depth| depth == 0 && (word(expression, at, "if") || word(expression, at, "recursive")));
    let end = end.unwrap_or_else(|| expression.trim_end_matches(['-', '+']).len());
    (!expression[..end].trim().is_empty()).then_some((from, from + end))
}

/// Offset after the `{% endraw %}` that closes a raw block.
fn raw_end(text: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(open) = text[at..].find("{%") {
        let start = at + open + 2;
        let close = start + text[start..].find("%}")?;
        if text[start..close].trim_matches(['-', '+']).trim() == "endraw" {
            return Some(close + 2);
        }
        at = start;
    }
    None
}

#[cfg(test)]
mod tests;

//! Changes to a template's source that make the engine accept, and read as Jinja2 does, what transformers accepts.
//!
//! - Line ends become `\n`.
//! - `{% generation %}` (training marks, no output) becomes `{% with %}`, which has the same scope.
//! - The iterable of every `for` passes through the filter `ITERATE`: iterating none is an error in Python (here it would
//!   drop text from the prompt in silence), and a string is a sequence of known length.
//! - `'literal' % arguments` becomes a filter call, and a unary plus is dropped: the engine has neither.
//! - A macro that reads `varargs` or `kwargs` gets them as parameters, and a wrapper that fills them.

/// Name of the filter that wraps every loop's iterable.
pub(super) const ITERATE: &str = "__iterate";
/// Name of the filter for `%` behind a string literal.
pub(super) const MODULO: &str = "__modulo";
/// Name of the function that wraps a macro with free arguments.
pub(super) const VARIADIC: &str = "__variadic";

/// Rewrites a template's source. Broken source comes back as it is, for the parser to refuse. Line numbers stay.
pub(super) fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 256);
    let mut rest = source.as_str();
    let mut macros = Vec::new();
    while let Some(open) = rest.find("{%").into_iter().chain(rest.find("{{")).chain(rest.find("{#")).min() {
        let (text, tag) = rest.split_at(open);
        out.push_str(text);
        let end = match &tag[..2] {
            "{#" => tag.find("#}").map(|i| i + 2),
            "{{" => code_end(&tag[2..], "}}").map(|i| i + 4),
            _ => code_end(&tag[2..], "%}").map(|i| i + 4),
        };
        let Some(end) = end else {
            out.push_str(tag);
            return out;
        };
        let (tag, after) = tag.split_at(end);
        rest = after;
        if tag.starts_with("{#") {
            out.push_str(tag);
            continue;
        }
        let code = operators(&tag[2..tag.len() - 2]);
        let body = code.as_str();
        if tag.starts_with("{{") {
            out.push_str(&format!("{{{{{body}}}}}"));
            continue;
        }
        let lead = body.len() - body.trim_start_matches(['-', '+']).trim_start().len();
        let word_len = body[lead..].find(|c: char| !is_word(c)).unwrap_or(body.len() - lead);
        let (before, word, tail) = (&body[..lead], &body[lead..lead + word_len], &body[lead + word_len..]);
        let replaced = match word {
            "generation" => format!("{{%{before}with{tail}%}}"),
            "endgeneration" => format!("{{%{before}endwith{tail}%}}"),
            "macro" => match variadic(tail, rest) {
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
                    format!("{{%{before}for{} ({})|{ITERATE} {}%}}", &tail[..from], &tail[from..to], &tail[to..])
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
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
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

/// Drops unary pluses and turns `%` behind a string literal into a filter.
fn operators(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut at = 0;
    // Where in `out` the string literal starts that was just written; whether an operand was.
    let (mut literal, mut operand) = (None, false);
    while let Some(c) = code[at..].chars().next() {
        let mut len = c.len_utf8();
        match c {
            '"' | '\'' => {
                len = string_len(&code[at..]);
                literal = Some(out.len());
                operand = true;
            }
            // The first character of a tag may be a sign of whitespace control.
            '+' if !operand && at > 0 => {
                at += 1;
                continue;
            }
            '%' if literal.is_some() => {
                let start = literal.take().unwrap_or_default();
                let rest = &code[at + 1..];
                let end = scan(rest, |i, depth| depth == 0 && ends_operand(rest, i)).unwrap_or(rest.len());
                let text = out.split_off(start);
                out.push_str(&format!("({})|{MODULO}({})", text.trim_end(), operators(rest[..end].trim())));
                out.push_str(&rest[rest[..end].trim_end().len()..end]);
                at += 1 + end;
                operand = true;
                continue;
            }
            c if c.is_whitespace() => {}
            c if is_word(c) => {
                len = code[at..].find(|c| !is_word(c)).unwrap_or(code.len() - at);
                operand = !matches!(&code[at..at + len], "and" | "or" | "not" | "in" | "is" | "if" | "else" | "set");
                literal = None;
            }
            c => {
                operand = matches!(c, ')' | ']' | '}');
                literal = None;
            }
        }
        out.push_str(&code[at..at + len]);
        at += len;
    }
    out
}

/// Whether the operand of a `%` ends here.
fn ends_operand(code: &str, at: usize) -> bool {
    let rest = &code[at..];
    let first = rest.chars().next().unwrap_or(',');
    if matches!(first, ',' | ')' | ']' | '}' | '~' | '+' | '*' | '/' | '%' | '<' | '>' | '=' | '!' | ':') {
        return true;
    }
    if first == '-' {
        // A sign before the operand belongs to it.
        return !code[..at].trim().is_empty();
    }
    let keyword = |word: &str| rest.starts_with(word) && !rest[word.len()..].starts_with(is_word);
    is_word(first)
        && !code[..at].ends_with(is_word)
        && ["if", "else", "and", "or", "in", "is", "not"].into_iter().any(keyword)
}

fn string_len(code: &str) -> usize {
    let quote = code.chars().next();
    let mut escaped = false;
    for (at, c) in code.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if Some(c) == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    code.len()
}

/// For a macro whose body reads `varargs` or `kwargs`: its name, the list of its parameters as an expression, and its
/// declaration with the two added.
fn variadic(tail: &str, rest: &str) -> Option<(String, String, String)> {
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

/// Range of the iterable expression in what follows `for`: after the first `in`, up to a filter, `recursive` or the end.
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
mod tests {
    use super::rewrite;

    #[test]
    fn loops_and_generation() {
        for (from, to) in [
            ("{% for x in xs %}", "{% for x in ( xs )|__iterate %}"),
            ("{%- for x in xs -%}", "{%- for x in ( xs )|__iterate -%}"),
            ("{% for k, v in d.items() if k in ok %}", "{% for k, v in ( d.items() )|__iterate if k in ok %}"),
            ("{% for x in a['in %}'] recursive %}", "{% for x in ( a['in %}'] )|__iterate recursive %}"),
            ("{% for x in [1 if y else 2] %}", "{% for x in ( [1 if y else 2] )|__iterate %}"),
            ("{% for x in s.if_ %}", "{% for x in ( s.if_ )|__iterate %}"),
            ("{%- generation -%}a{%- endgeneration %}", "{%- with -%}a{%- endwith %}"),
            ("{# {% for x in y %} #}{{ '{% for x in y %}' }}", "{# {% for x in y %} #}{{ '{% for x in y %}' }}"),
            ("{% raw %}{% for x in y %}{%- endraw -%}", "{% raw %}{% for x in y %}{%- endraw -%}"),
            ("{{ {'a': {'b': 1}}}}{% for x in y %}", "{{ {'a': {'b': 1}}}}{% for x in ( y )|__iterate %}"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{{ +1 + +2 }}{{ a + 'b' }}{{- x +}}", "{{ 1 + 2 }}{{ a + 'b' }}{{- x +}}"),
            ("{{ '%s' % (a, 'b') ~ c }}", "{{ ('%s')|__modulo((a, 'b')) ~ c }}"),
            ("{{ '%s' % -x|abs if y else 7 % 2 }}", "{{ ('%s')|__modulo(-x|abs) if y else 7 % 2 }}"),
            (
                "{%- macro m(a, b='x') -%}{{ varargs }}{%- endmacro -%}",
                "{%- macro m(a, b='x', varargs=[], kwargs={}) -%}{{ varargs }}{%- endmacro -%}{% set m = __variadic(m, ['a', 'b']) -%}",
            ),
            ("{% macro m(a) %}{{ a }}{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}"),
            ("{% for x in y", "{% for x in y"),
        ] {
            assert_eq!(rewrite(from), to);
        }
    }
}

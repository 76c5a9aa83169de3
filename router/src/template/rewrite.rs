//! Changes to a template's source that make the engine accept, and read as Jinja2 does, what transformers accepts.
//!
//! - Line ends become `\n`.
//! - `{% generation %}` (training marks, no output) becomes `{% with %}`, which has the same scope.
//! - The iterable of every `for` passes through the filter `ITERATE`: iterating none is an error in Python (here it would
//!   drop text from the prompt in silence), and a string is a sequence of known length.

/// Name of the filter that wraps every loop's iterable.
pub(super) const ITERATE: &str = "__iterate";

/// Rewrites a template's source. Broken source comes back as it is, for the parser to refuse. Line numbers stay.
pub(super) fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 256);
    let mut rest = source.as_str();
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
        if !tag.starts_with("{%") {
            out.push_str(tag);
            continue;
        }
        let body = &tag[2..tag.len() - 2];
        let lead = body.len() - body.trim_start_matches(['-', '+']).trim_start().len();
        let word_len = body[lead..].find(|c: char| !is_word(c)).unwrap_or(body.len() - lead);
        let (before, word, tail) = (&body[..lead], &body[lead..lead + word_len], &body[lead + word_len..]);
        let replaced = match word {
            "generation" => format!("{{%{before}with{tail}%}}"),
            "endgeneration" => format!("{{%{before}endwith{tail}%}}"),
            "for" => match iterable(tail) {
                Some((from, to)) => {
                    format!("{{%{before}for{} ({})|{ITERATE} {}%}}", &tail[..from], &tail[from..to], &tail[to..])
                }
                None => tag.to_owned(),
            },
            _ => tag.to_owned(),
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
            ("{% for x in y", "{% for x in y"),
        ] {
            assert_eq!(rewrite(from), to);
        }
    }
}

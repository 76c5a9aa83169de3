//! Lines of the user: with editing and a history on a terminal, plain ones from a pipe.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

const MOST_LINES: usize = 1000;

pub enum Lines {
    Edited(Box<Editor<Continued, FileHistory>>, Option<PathBuf>),
    Piped,
}

/// A line that ends in `\` goes on in the next one.
pub struct Continued;

impl Validator for Continued {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match context.input().ends_with('\\') {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Continued {
    type Candidate = String;
}

impl Hinter for Continued {
    type Hint = String;
}

impl Highlighter for Continued {}
impl Helper for Continued {}

pub enum Line {
    Text(String),
    /// Ctrl-C.
    Cancelled,
    End,
}

impl Lines {
    pub fn open() -> Result<Self, ReadlineError> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines::Piped);
        }
        let mut editor = Editor::new()?;
        editor.set_helper(Some(Continued));
        editor.set_max_history_size(MOST_LINES)?;
        editor.set_history_ignore_space(true);
        let history = history_file();
        // There is none yet at the first time.
        let _ = history.as_ref().map(|path| editor.load_history(path));
        Ok(Lines::Edited(Box::new(editor), history))
    }

    pub fn is_edited(&self) -> bool {
        matches!(self, Lines::Edited(..))
    }

    /// The next line, or several that are continued.
    pub fn read(&mut self, prompt: &str) -> Result<Line, ReadlineError> {
        match self {
            Lines::Edited(editor, history) => {
                let line = match editor.readline(prompt) {
                    Ok(line) => line,
                    Err(ReadlineError::Interrupted) => return Ok(Line::Cancelled),
                    Err(ReadlineError::Eof) => return Ok(Line::End),
                    Err(error) => return Err(error),
                };
                if !line.trim().is_empty() {
                    editor.add_history_entry(&line)?;
                    if let Some(path) = history {
                        let _ = std::fs::create_dir_all(path.parent().unwrap_or(path));
                        let _ = editor.save_history(path);
                    }
                }
                Ok(Line::Text(line.replace("\\\n", "\n")))
            }
            Lines::Piped => {
                let mut whole = String::new();
                let mut input = std::io::stdin().lock();
                while input.read_line(&mut whole)? > 0 {
                    whole.truncate(whole.trim_end_matches(['\n', '\r']).len());
                    if !whole.ends_with('\\') {
                        return Ok(Line::Text(whole));
                    }
                    whole.pop();
                    whole.push('\n');
                }
                Ok(if whole.is_empty() { Line::End } else { Line::Text(whole) })
            }
        }
    }
}

fn history_file() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")))?;
    Some(state.join("rein/chat_history"))
}

//! What a chat shows: text as it comes, reasoning dimmed, calls in colour. Without a terminal, or with NO_COLOR, plain.

use std::io::{IsTerminal, Write};

use super::answer::AnswerPiece;

const DIM: &str = "\x1b[2m";
const CALL: &str = "\x1b[36m";
const BAD: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// What was shown last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Nothing,
    Reasoning,
    Text,
    Call,
}

pub struct Screen {
    colours: bool,
    last: Shown,
    pub hides_reasoning: bool,
}

impl Screen {
    pub fn new() -> Self {
        let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Screen { colours, last: Shown::Nothing, hides_reasoning: false }
    }

    pub fn piece(&mut self, piece: AnswerPiece<'_>) {
        match piece {
            AnswerPiece::Reasoning(_) if self.hides_reasoning => {}
            AnswerPiece::Reasoning(text) => self.show(Shown::Reasoning, DIM, text),
            // Blanks between reasoning and answer.
            AnswerPiece::Text(text) if self.last != Shown::Text => match text.trim_start() {
                "" => {}
                text => self.show(Shown::Text, "", text),
            },
            AnswerPiece::Text(text) => self.show(Shown::Text, "", text),
            AnswerPiece::Call(name) => {
                self.end();
                self.show(Shown::Call, CALL, &format!("→ {name} "));
            }
            AnswerPiece::Arguments(text) => self.show(Shown::Call, CALL, text),
        }
    }

    fn show(&mut self, what: Shown, colour: &str, text: &str) {
        if self.last != what {
            self.end();
            self.last = what;
        }
        self.write(colour, text);
    }

    /// Ends a line that was begun.
    pub fn end(&mut self) {
        if self.last != Shown::Nothing {
            self.write("", "\n");
            self.last = Shown::Nothing;
        }
    }

    pub fn note(&mut self, text: &str) {
        self.end();
        self.write(DIM, text);
        self.write("", "\n");
    }

    pub fn problem(&mut self, text: &str) {
        self.end();
        self.write(BAD, text);
        self.write("", "\n");
    }

    fn write(&self, colour: &str, text: &str) {
        let mut out = std::io::stdout();
        // The terminal may be gone; the next line from it says so.
        let _ = match self.colours && !colour.is_empty() {
            true => write!(out, "{colour}{text}{PLAIN}"),
            false => write!(out, "{text}"),
        };
        let _ = out.flush();
    }
}

//! Stop strings over a stream of text. No character of a match is ever let out, however the text is cut into pieces.

/// What a request names to end the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    Token(u32),
    Text(String),
}

/// Finds the first place at which any stop string ends; of several that end there, the longest counts.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The longest end of the text so far that a stop string may begin with.
    held: String,
    /// Let the match itself out.
    include: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Text that no match can reach any more.
    pub text: String,
    /// The stop string that ended the text.
    pub matched: Option<String>,
}

impl StopStrings {
    pub fn new(stops: Vec<String>, include: bool) -> Self {
        StopStrings { stops, held: String::new(), include }
    }

    pub fn strings(&self) -> &[String] {
        &self.stops
    }

    pub fn push(&mut self, text: &str) -> Scanned {
        if self.stops.is_empty() {
            return Scanned { text: text.to_owned(), matched: None };
        }
        let mut all = std::mem::take(&mut self.held);
        all.push_str(text);
        let ends =
            self.stops.iter().filter_map(|stop| all.find(stop.as_str()).map(|start| (start, start + stop.len())));
        if let Some((start, end)) = ends.min_by_key(|&(start, end)| (end, start)) {
            let matched = all[start..end].to_owned();
            all.truncate(if self.include { end } else { start });
            return Scanned { text: all, matched: Some(matched) };
        }
        Scanned { text: self.pass(&all), matched: None }
    }

    /// Takes text in which no match may end; one may begin in it.
    pub fn pass(&mut self, text: &str) -> String {
        let mut all = std::mem::take(&mut self.held);
        all.push_str(text);
        let hold = self.stops.iter().map(|stop| overlap(&all, stop)).max().unwrap_or(0);
        self.held = all.split_off(all.len() - hold);
        all
    }

    /// The text ends here without a match, and with it what was held back.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that is a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let (text, stop) = (text.as_bytes(), stop.as_bytes());
    let longest = text.len().min(stop.len().saturating_sub(1));
    // Both are UTF-8, so an overlap that begins with a beginning of `stop` is cut at a character.
    (1..=longest).rev().find(|&n| text.ends_with(&stop[..n]) && std::str::from_utf8(&stop[..n]).is_ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;

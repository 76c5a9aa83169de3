//! Finds stop strings in a stream of text. No character of a match is returned, however the text is split into pieces.

/// A condition of a request that ends the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    Token(u32),
    Text(String),
}

/// Finds the match that ends first; of several that end at the same place, the longest.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The longest suffix of the text so far that is a prefix of a stop string.
    held: String,
    /// Whether the match itself is returned.
    include: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Text that can no longer become part of a match.
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

    /// Adds text in which no match may end, although one may begin in it.
    pub fn pass(&mut self, text: &str) -> String {
        let mut all = std::mem::take(&mut self.held);
        all.push_str(text);
        let hold = self.stops.iter().map(|stop| overlap(&all, stop)).max().unwrap_or(0);
        self.held = all.split_off(all.len() - hold);
        all
    }

    /// Ends the text without a match; returns what was held back.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let (text, stop) = (text.as_bytes(), stop.as_bytes());
    let longest = text.len().min(stop.len().saturating_sub(1));
    // The overlap must end between two characters of `stop`; it then also begins between two characters of `text`.
    (1..=longest).rev().find(|&n| text.ends_with(&stop[..n]) && std::str::from_utf8(&stop[..n]).is_ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;

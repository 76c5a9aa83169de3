//! An incremental parser of server-sent events. It does not know what their data means.

#[derive(Debug)]
pub struct SseEvents {
    /// Maximum size of an event.
    most_bytes: usize,
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct EventTooLong;

impl SseEvents {
    pub fn new(most_bytes: usize) -> Self {
        SseEvents { most_bytes, line: Vec::new(), data: Vec::new(), has_data: false }
    }

    /// Parses more bytes. Calls `event` with the data of each event that is complete.
    pub fn push(&mut self, mut bytes: &[u8], mut event: impl FnMut(&[u8])) -> Result<(), EventTooLong> {
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.end_line(&mut event);
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() + self.data.len() > self.most_bytes { Err(EventTooLong) } else { Ok(()) }
    }

    fn end_line(&mut self, event: &mut impl FnMut(&[u8])) {
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                event(&self.data);
            }
            self.data.clear();
        } else if let Some(data) = line.strip_prefix(b"data:") {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
        }
        line.clear();
        self.line = line;
    }
}

#[cfg(test)]
mod tests;

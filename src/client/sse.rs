//! An incremental parser of server-sent events.

/// Maximum size of an event.
const MAX_EVENT_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub struct SseEvents {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl SseEvents {
    /// Parses more bytes. Calls `event` with the data of each event that is complete.
    pub fn push(&mut self, mut bytes: &[u8], mut event: impl FnMut(&[u8])) -> Result<(), TooLong> {
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.end_line(&mut event);
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() + self.data.len() > MAX_EVENT_BYTES { Err(TooLong) } else { Ok(()) }
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

//! The frames of server-sent events, as each API encodes its own.

use rein_proto::v1;

use crate::error::Error;

/// Encodes the events of an answer as the frames of one API's stream.
pub trait EncodeFrames: Send + 'static {
    /// Appends the frames of an event.
    fn event(&mut self, event: v1::ChatEvent, out: &mut Vec<u8>);

    /// Appends the frames with which a failed answer ends.
    fn error(&mut self, error: &Error, out: &mut Vec<u8>);

    /// Appends the frames with which a whole answer ends.
    fn end(&mut self, out: &mut Vec<u8>);

    /// Appends what is sent if nothing else was sent for [`crate::limits::SSE_SILENCE`].
    fn silence(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": waiting\n\n");
    }
}

/// Appends a frame with a name.
pub fn write_event(name: &str, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    write_data(payload, out);
}

pub fn write_data(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\n\n");
}

//! Walks over JSON text without parsing it.

/// How many bytes at the beginning are plain.
pub(crate) fn run_length(bytes: &[u8], plain: impl Fn(u8) -> bool) -> usize {
    // The compiler checks the bytes of a block at once.
    let blocks = bytes.chunks_exact(32).take_while(|block| block.iter().fold(true, |all, b| all & plain(*b)));
    let whole = 32 * blocks.count();
    let more = bytes[whole..].iter().position(|b| !plain(*b));
    more.map_or(bytes.len(), |more| whole + more)
}

pub(crate) fn skip_string(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while at < bytes.len() {
        at += run_length(&bytes[at..], |b| b != b'"' && b != b'\\');
        if at >= bytes.len() {
            break;
        }
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

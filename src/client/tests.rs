use std::time::Duration;

use super::retry_after;
use super::sse::{Events, TooLong};

#[test]
fn events_are_read_however_they_are_cut() {
    let text = b": comment\n\ndata: one\n\nevent: x\r\ndata: two\r\ndata:three\r\n\r\ndata:\n\nid: 4\n\ndata: cut";
    for size in 1..text.len() {
        let (mut events, mut got) = (Events::default(), Vec::new());
        for part in text.chunks(size) {
            assert_eq!(events.push(part, |e| got.push(String::from_utf8_lossy(e).into_owned())), Ok(()));
        }
        assert_eq!(got, ["one", "two\nthree", ""], "cut by {size}");
    }
    let mut events = Events::default();
    assert_eq!(events.push(&vec![b'x'; (16 << 20) + 1], |_| {}), Err(TooLong));
}

#[test]
fn a_server_may_ask_to_wait_for_seconds_or_until_a_date() {
    assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
    assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
    assert_eq!(retry_after("soon"), None);
}

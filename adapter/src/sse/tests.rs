use super::*;

#[test]
fn events_are_parsed_whatever_the_chunk_size() {
    let text = b": comment\n\ndata: one\n\nevent: x\r\ndata: two\r\ndata:three\r\n\r\ndata:\n\nid: 4\n\ndata: cut";
    for size in 1..text.len() {
        let (mut events, mut got) = (SseEvents::new(1 << 10), Vec::new());
        for part in text.chunks(size) {
            assert_eq!(events.push(part, |e| got.push(String::from_utf8_lossy(e).into_owned())), Ok(()));
        }
        assert_eq!(got, ["one", "two\nthree", ""], "cut by {size}");
    }
    let mut events = SseEvents::new(1 << 10);
    assert_eq!(events.push(&vec![b'x'; (1 << 10) + 1], |_| {}), Err(EventTooLong));
}

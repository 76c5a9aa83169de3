use serde_json::{Value, json};

use super::{Tagged, members};
use crate::codec::{End, OpenCall, Progress, arguments_of};
use crate::format::Tags;

const TAGS: Tags = Tags { open: "<cofl:value", close: "</cofl:value>" };

/// The arguments as JSON text, and whether they ended.
fn read(written: &str, cut: bool) -> (String, bool) {
    let call = OpenCall::of_f(Vec::new().into());
    let mut events = Vec::new();
    let mut body = Tagged::new(call, TAGS, &mut events);
    let progress = written.bytes().map(|b| body.feed(b)).find(|progress| *progress != Progress::More);
    let done = progress == Some(Progress::Done);
    let end = if cut { End::Output } else { End::Broken };
    body.end(if done { End::Whole } else { end }, &mut events);
    (arguments_of(events), done)
}

#[test]
fn what_is_written_is_read_back() {
    for value in [
        json!({}),
        json!({"a": " <x> &lt; \"\n\\ é </cofl:valu", "b": ""}),
        json!({"a": ["1", "", "null", null, true, -2.5, [], {}, [[1]], {"k": {"l": "m"}}]}),
        json!({"a<b> \"c\" & d&amp;": {"&": "x", "'": 1}}),
    ] {
        let written = members(value.as_object().expect("an object"), TAGS) + "</cofl:tool_call>";
        let (read, done) = read(&written, false);
        assert!(done, "{written}");
        assert_eq!(serde_json::from_str::<Value>(&read).ok(), Some(value), "{written}");
    }
}

/// Blanks between elements, and what a model writes as JSON that is none.
#[test]
fn what_models_write_otherwise_is_read() {
    let written = "\n  <cofl:value type=\"dict\" name=\"o\">\n <cofl:value name=\"b\" type=\"json\">True</cofl:value>\n\
                   <cofl:value name=\"j\" type=\"json\"> {\"k\": [1]} </cofl:value> </cofl:value>\n</cofl:tool_call>";
    assert_eq!(read(written, false), (r#"{"o": {"b": true, "j": {"k": [1]}}}"#.to_owned(), true));
}

#[test]
fn what_has_no_end_is_not_whole() {
    for (written, reported) in [
        ("<cofl:value name=\"s\" type=\"raw\">a</cofl:va", r#"{"s": "a"#),
        ("<cofl:value name=\"s\" type=\"list\"><cofl:value type=\"json\">12", r#"{"s": [12"#),
        ("<cofl:value name=\"s\" type=\"raw\">a</cofl:value></cofl:value>", r#"{"s": "a""#),
        ("<cofl:value type=\"raw\">a</cofl:value>", "{"),
        ("<cofl:value name=\"s\" type=\"text\">a</cofl:value>", "{"),
        ("x", "{"),
    ] {
        assert_eq!(read(written, true), (reported.to_owned(), false), "{written}");
    }
}

use serde_json::{Value, json};

use super::{Bare, object};
use crate::codec::{End, OpenCall, Progress, arguments_of};
use crate::tools::Tools;

const MARK: &str = "<|\"|>";

/// The arguments as JSON text, and whether they ended.
fn read(written: &str) -> (String, bool) {
    let call = OpenCall::of_f(Tools::default());
    let mut body = Bare::new(call, "", MARK);
    let mut events = Vec::new();
    let mut done = false;
    for b in written.bytes() {
        match body.feed(b, &mut events) {
            Progress::More => {}
            Progress::Done => done = true,
            Progress::Bad => break,
        }
    }
    body.end(if done { End::Whole } else { End::Broken }, &mut events);
    (arguments_of(events), done)
}

#[test]
fn what_is_written_is_read_back() {
    for value in [
        json!({}),
        json!({"city": "Paris", "n": 3}),
        json!({"text": "a \"b\" \\ {x:1}, [y] <|\"| <|<|\"|é\n", "empty": "", "null": null}),
        json!({"list": [1, "two", [], {}, [true, false, -1.5e3]], "o": {"a b": {"x:y": "z", "": 1}}}),
    ] {
        let written = object(value.as_object().expect("an object"), MARK);
        let (text, done) = read(&written);
        assert!(done, "{written}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value, "{written}");
    }
}

/// As the template of Gemma 4 writes it: names sorted, no blanks.
#[test]
fn the_layout_is_the_template_s() {
    let value = json!({"unit": "C", "City": "Paris", "days": [1, 2], "o": {"b": true, "a": "x"}});
    assert_eq!(
        object(value.as_object().expect("an object"), MARK),
        r#"{City:<|"|>Paris<|"|>,days:[1,2],o:{a:<|"|>x<|"|>,b:true},unit:<|"|>C<|"|>}"#
    );
    let odd = json!({"a:b": 1});
    assert_eq!(object(odd.as_object().expect("an object"), "<escape>"), "{<escape>a:b<escape>:1}");
}

#[test]
fn blanks_words_and_json_are_read_leniently() {
    for (written, want) in [
        (r#"{ a : 1 , b : [ 2 , None ] }"#, r#"{"a": 1, "b": [2, null]}"#),
        ("{city:New York,ok:True}", r#"{"city": "New York", "ok": true}"#),
        (r#"{"a": "x", "b": 2}"#, r#"{"a": "x", "b": 2}"#),
    ] {
        assert_eq!(read(written), (want.to_owned(), true), "{written}");
    }
    for broken in ["{a}", "{a:}", "{,}", "{a:[1}", "x", "{:1}"] {
        assert!(!read(broken).1, "{broken}");
    }
}

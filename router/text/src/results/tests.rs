use serde_json::json;

use super::*;

fn read(part: Value) -> (String, bool) {
    let ResultText { text, whole } = as_text(part.as_object().expect("an object"));
    (text, whole)
}

#[test]
fn texts_in_other_forms_are_kept() {
    for (part, text) in [
        (
            json!({"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "a\nb"}}),
            "T\na\nb",
        ),
        (
            json!({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}),
            "a\nb",
        ),
        (json!({"type": "document", "context": "C", "source": {"type": "content", "content": "a"}}), "C\na"),
        (
            json!({"type": "search_result", "source": "https://x", "title": "T", "content": [{"type": "text", "text": "a"}]}),
            "T\nhttps://x\na",
        ),
        (json!({"type": "input_text", "text": "a"}), "a"),
    ] {
        assert_eq!(read(part.clone()), (text.to_owned(), true), "{part}");
    }
}

#[test]
fn what_cannot_be_read_is_named_in_its_place() {
    let shown = |what: &str| (format!("[{what}: not shown, because this model reads only text]"), false);
    for (part, what) in [
        (json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}), "image"),
        (json!({"type": "input_image", "image_url": "data:image/png;base64,iVBO"}), "image"),
        (json!({"type": "image_url", "image_url": {"url": "https://x/y.png"}}), "image"),
        (
            json!({"type": "document", "title": "T", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}),
            "document \"T\"",
        ),
        (json!({"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}}), "document"),
        (json!({"type": "input_file", "filename": "a.pdf", "file_data": "JVBE"}), "file \"a.pdf\""),
        (json!({"type": "file", "file": {"filename": "b.pdf"}}), "file \"b.pdf\""),
        (json!({"type": "resource_link", "name": "n", "uri": "u"}), "resource_link \"n\""),
        (json!({"type": "text", "text": 3}), "text"),
        (json!({}), "part"),
    ] {
        assert_eq!(read(part.clone()), shown(what), "{part}");
    }
}

#[test]
fn only_results_are_changed() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
    let text = json!({"type": "text", "text": "a"});
    let mut messages = vec![
        json!({"role": "user", "content": [text, image]}),
        json!({"role": "tool", "tool_call_id": "c", "content": [text, image, 3]}),
        json!({"role": "tool", "tool_call_id": "d", "content": "b"}),
    ];
    let before = messages.clone();
    assert_eq!(replace_unreadable(&mut messages), ["messages[1].content[1]"]);
    assert_eq!((&messages[0], &messages[2]), (&before[0], &before[2]));
    let placeholder = json!({"type": "text", "text": "[image: not shown, because this model reads only text]"});
    assert_eq!(messages[1]["content"], json!([text, placeholder, 3]));
}

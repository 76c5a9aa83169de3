//! The text of a custom tool comes out of its arguments, however they are cut.

use proptest::prelude::*;
use serde_json::json;

use super::super::custom_input::{CustomInput, arguments};

/// The text of these arguments, when they come in these pieces.
fn decoded(pieces: &[&str]) -> String {
    let mut input = CustomInput::default();
    let mut text: String = pieces.iter().map(|piece| input.push(piece).to_owned()).collect();
    text.push_str(input.finish());
    text
}

#[test]
fn the_text_comes_with_the_arguments() {
    let mut input = CustomInput::default();
    for (piece, text) in [
        ("{ \"in", ""),
        ("put\" : \"a", "a"),
        ("b\\", "b"),
        ("nc\\ud83d", "\nc"),
        ("\\u", ""),
        ("de42d\\\"", "\u{1f642}d\""),
        ("\"}", ""),
    ] {
        assert_eq!(input.push(piece), text, "{piece}");
    }
    assert_eq!(input.finish(), "");
}

#[test]
fn arguments_in_another_form_are_read_at_their_end() {
    for (arguments, text) in [
        ("{\"other\": 1, \"input\": \"x\"}", "x"),
        ("just text", "just text"),
        ("{\"input\": 5}", "{\"input\": 5}"),
        ("", ""),
        ("{\"input\": \"cut \\u00", "cut "),
        ("{\"input\": \"half \\ud83d", "half \u{fffd}"),
        ("{\"input\": \"half \\ud83d\\ud83dx\"}", "half \u{fffd}\u{fffd}x"),
    ] {
        assert_eq!(decoded(&[arguments]), text, "{arguments}");
    }
}

proptest! {
    #[test]
    fn any_text_in_any_pieces(
        text in any::<String>(),
        ascii in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
    ) {
        let mut json = if ascii {
            // Every character escaped, as some models write them.
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            format!("{{\"input\":\"{units}\"}}")
        } else {
            json!({"input": text}).to_string()
        };
        prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&arguments(&text)).unwrap(), json!({"input": text}));
        let mut pieces = Vec::new();
        for cut in cuts {
            let at = cut.index(json.len() + 1);
            let at = (0..=at).rev().find(|at| json.is_char_boundary(*at)).unwrap_or(0);
            let rest = json.split_off(at);
            pieces.push(rest);
        }
        pieces.push(json);
        pieces.reverse();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(decoded(&pieces), text);
    }
}

use super::*;

#[test]
fn only_long_repetitions_of_words_count() {
    let item = "{\"name\": \"Ann\", \"tags\": [\"a\"]}, ";
    let often = |text: &str, bytes: usize| text.repeat(bytes.div_ceil(text.len()));
    assert!(ends_in_repetition(&format!("[1, 2, {}", often(item, REPETITION_BYTES))));
    assert!(ends_in_repetition(&often("a", REPETITION_BYTES)));
    assert!(ends_in_repetition(&often("東", REPETITION_BYTES)));
    // The middle of a repetition, as it is found while it grows.
    assert!(ends_in_repetition(&often(item, REPETITION_BYTES + 11)[..REPETITION_BYTES + 5]));
    assert!(!ends_in_repetition(&often(item, REPETITION_BYTES / 2)));
    assert!(!ends_in_repetition(&often("0.0, ", 2 * REPETITION_BYTES)));
    // Texts that are longer than the limit allows, and items that differ.
    assert!(!ends_in_repetition(&often(&(0..200).map(|i| format!("word {i} ")).collect::<String>(), REPETITION_BYTES)));
    assert!(!ends_in_repetition(&(0..400).map(|i| format!("{{\"name\": \"Ann {i}\"}}, ")).collect::<String>()));
}

#[test]
fn deep_values_are_led_to_their_end_earlier() {
    let led = |text: &str, tokens| {
        let mut response = ResponseText::default();
        // The state goes on from piece to piece.
        text.chars().for_each(|c| response.push(&c.to_string()));
        response.leads_to_end(tokens, Some(400)).is_some()
    };
    assert!(!led("{\"a\": [1", 299) && led("{\"a\": [1", 300));
    let deep = "{\"a\": ".repeat(10);
    assert!(!led(&deep, 239) && led(&deep, 240));
    assert!(
        !led(&"[".repeat(7), 299)
            && led(&"[".repeat(8), 300)
            && !led(&"[".repeat(60), 199)
            && led(&"[".repeat(60), 200)
    );
    // Closed values and brackets in strings do not count.
    assert!(!led(&format!("{deep}1{}", "}".repeat(9)), 299));
    assert!(!led(&format!("{{\"a\": \"\\\"{}", "[".repeat(40)), 299));
    assert!(ResponseText::default().leads_to_end(399, Some(400)).is_none(), "there is no answer yet");
}

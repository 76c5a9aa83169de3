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

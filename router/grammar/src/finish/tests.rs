use super::*;

#[test]
fn the_nearest_end_comes_first() {
    let words = ["}", "\"", "\"}", ",", "1", "[", "{", "x", " ", "\n}", "<stop>", "\"a"];
    let ranks = Ranks::new(words.iter().map(|word| (*word != "<stop>").then(|| (*word).to_owned())));
    let narrowed = |allowed: &[&str]| {
        let bit = |word: &str| words.iter().position(|other| *other == word).expect("a word");
        let mut mask = vec![0; 2];
        allowed.iter().for_each(|word| mask[bit(word) / 8] |= 1 << (bit(word) % 8));
        ranks.narrow(&[10], false, &mut mask);
        let kept = words.iter().enumerate().filter(|(id, _)| mask[id / 8] >> (id % 8) & 1 == 1);
        kept.map(|(_, word)| *word).collect::<Vec<_>>()
    };
    // Outside of strings.
    assert_eq!(narrowed(&["}", "\n}", ",", "<stop>"]), ["<stop>"]);
    assert_eq!(narrowed(&["}", "\n}", ",", "1"]), ["}", "\n}"]);
    assert_eq!(narrowed(&[",", "1", " "]), [","]);
    assert_eq!(narrowed(&["\"", "\"a", "1", "[", "{"]), ["\""]);
    assert_eq!(narrowed(&["[", "{", " "]), ["["]);
    assert_eq!(narrowed(&["{", " "]), ["{"]);
    assert_eq!(narrowed(&[" "]), [" "]);
    // In a string, brackets are text.
    assert_eq!(narrowed(&["}", "\"", "\"}", "x", "1"]), ["\"", "\"}"]);
    // A string that must go on.
    assert_eq!(narrowed(&["}", "x", "1"]), ["}", "1", "x"]);
}

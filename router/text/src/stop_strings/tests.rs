use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

fn run(stops: &[&str], include: bool, pieces: &[&str]) -> (String, Option<String>) {
    let mut scanner = StopStrings::new(stops.iter().map(|s| s.to_string()).collect(), include);
    let mut out = String::new();
    for piece in pieces {
        let scanned = scanner.push(piece);
        out.push_str(&scanned.text);
        if scanned.matched.is_some() {
            return (out, scanned.matched);
        }
    }
    out.push_str(&scanner.flush());
    (out, None)
}

#[test]
fn a_match_split_over_pieces_never_leaks() {
    assert_eq!(run(&["STOP"], false, &["ab S", "T", "O", "P cd"]), ("ab ".into(), Some("STOP".into())));
    assert_eq!(run(&["STOP"], true, &["ab S", "T", "OP cd"]), ("ab STOP".into(), Some("STOP".into())));
    assert_eq!(run(&["STOP"], false, &["ab S", "TO", "x"]), ("ab STOx".into(), None));
    assert_eq!(run(&["aab"], false, &["aa", "ab"]), ("a".into(), Some("aab".into())));
    assert_eq!(run(&["né"], false, &["on n", "é!"]), ("on ".into(), Some("né".into())));
    assert_eq!(run(&["END"], false, &["the EN"]), ("the EN".into(), None));
}

#[test]
fn the_match_that_ends_first_wins_and_then_the_longest() {
    assert_eq!(run(&["cde", "d"], false, &["abcdef"]), ("abc".into(), Some("d".into())));
    assert_eq!(run(&["d", "bcd"], false, &["abcdef"]), ("a".into(), Some("bcd".into())));
}

#[test]
fn the_result_does_not_depend_on_how_the_text_is_split() {
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..2000 {
        let mut word = |max: usize| -> String {
            let length = rng.random_range(1..=max);
            (0..length).map(|_| ['a', 'b', 'é', '火'][rng.random_range(0..4)]).collect()
        };
        let (text, stops) = (word(24), [word(3), word(4)]);
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let whole = run(&stops, false, &[&text]);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = chars.iter().map(String::as_str).collect();
        assert_eq!(run(&stops, false, &pieces), whole, "{text} {stops:?}");
        assert!(stops.iter().all(|stop| !whole.0.contains(stop)), "{text} {stops:?}");
    }
}

use super::*;

#[test]
fn durations_are_shown_in_one_unit() {
    let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800, 8_640_000].map(duration);
    assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d", "100 d"]);
    assert_eq!(age(&Release::default()), "-");
}

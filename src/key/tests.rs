use super::*;

#[test]
fn an_entry_is_removed_and_comments_of_others_stay() {
    let entry = |name: &str| format!("[[key]]\nname = \"{name}\"  # of a team\nhash = \"x\"\npriority = 1\n");
    let text = format!("# Keys\n\n{}\n# For b.\n{}\n# For c.\n{}", entry("a"), entry("b"), entry("c"));
    assert_eq!(without(&text, "a"), format!("# Keys\n\n\n# For b.\n{}\n# For c.\n{}", entry("b"), entry("c")));
    assert_eq!(without(&text, "c"), format!("# Keys\n\n{}\n# For b.\n{}\n# For c.\n", entry("a"), entry("b")));
    assert_eq!(without(&text, "team"), text);
}

#[test]
fn an_expiry_is_a_time_a_date_or_a_while() {
    let from_now = |text| expiry(text).map(|time| (time - Utc::now()).num_minutes());
    assert_eq!(from_now("12h"), Ok(12 * 60 - 1));
    assert_eq!(from_now("90d"), Ok(90 * 24 * 60 - 1));
    assert_eq!(expiry("2999-01-31").map(shown).as_deref(), Ok("2999-01-31T00:00:00Z"));
    assert_eq!(expiry("2999-01-31T12:00:00+02:00").map(shown).as_deref(), Ok("2999-01-31T10:00:00Z"));
    for wrong in ["", "d", "0d", "-1d", "1w", "tomorrow", "99999999999999d", "2999-13-01"] {
        assert!(expiry(wrong).is_err_and(|error| error.starts_with("expected")), "{wrong}");
    }
    assert!(expiry("2001-01-01").is_err_and(|error| error.ends_with("is past")));
}

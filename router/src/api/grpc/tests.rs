use super::*;

#[test]
fn timeouts_parse_in_every_unit_and_invalid_ones_do_not() {
    assert_eq!(parse_timeout("2S"), Some(Duration::from_secs(2)));
    assert_eq!(parse_timeout("100m"), Some(Duration::from_millis(100)));
    assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
    for wrong in ["", "S", "1", "1x", "-1S", "123456789S", "1é"] {
        assert_eq!(parse_timeout(wrong), None, "{wrong}");
    }
}

use super::*;

fn parsed(header: &str, data: u64) -> Result<Vec<Parsed>, String> {
    parse_header(header.as_bytes(), (LENGTH + header.len()) as u64 + data)
}

#[test]
fn valid_headers_parse_and_errors_name_the_fault() {
    let one = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
    let good = parsed(one, 12).expect("good");
    assert_eq!((good.len(), &good[0].2[..]), (1, &[2, 3][..]));
    let two = |a: &str, b: &str| {
        let of = |name, at: &str| format!(r#""{name}":{{"dtype":"F8_E4M3","shape":[4],"data_offsets":{at}}}"#);
        format!("{{{},{}}}", of("a", a), of("b", b))
    };
    assert!(parsed(&two("[8,12]", "[0,4]"), 12).is_ok(), "a hole, and any order");
    let cases = [
        (one.to_owned(), 11, "truncated: tensor a"),
        ("[]".into(), 0, "expected a JSON object"),
        (r#"{"a":{"dtype":"U3","shape":[],"data_offsets":[0,1]}}"#.into(), 1, "dtype U3"),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.into(), 8, "do not fit shape"),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#.into(), 8, "do not fit shape"),
        (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#.into(), 8, "do not fit"),
        (two("[0,4]", "[3,7]"), 8, "tensors a at [0, 4] and b at [3, 7] overlap"),
        (two("[4,8]", "[4,8]"), 8, "overlap"),
        (two("[0,4]", "[4,8]").replace("\"b\"", "\"a\""), 8, "a occurs twice"),
    ];
    for (header, data, expected) in cases {
        let error = parsed(&header, data).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

use super::*;

#[test]
fn keys_are_read_from_both_headers() {
    let with = |name: &'static str, value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        key(&headers).map(<[u8]>::to_vec)
    };
    for (name, value, found) in [
        ("authorization", "Bearer abc", true),
        ("authorization", "bearer  abc ", true),
        ("x-api-key", "abc", true),
        ("authorization", "abc", false),
        ("authorization", "Basic abc", false),
        ("authorization", "Bearer ", false),
        ("x-api-key", "", false),
    ] {
        assert_eq!(with(name, value), found.then(|| b"abc".to_vec()), "{name}: {value}");
    }
}

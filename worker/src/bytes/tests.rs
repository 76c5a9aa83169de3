use super::ByteCount;

#[test]
fn the_unit_grows_with_the_number() {
    let shown = [0, 1536, 1 << 20, 10 << 30, 3 << 40, 5 << 50].map(|bytes| ByteCount(bytes).to_string());
    assert_eq!(shown, ["0.0 KiB", "1.5 KiB", "1.0 MiB", "10.0 GiB", "3.0 TiB", "5120.0 TiB"]);
}

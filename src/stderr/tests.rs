use super::*;

#[test]
fn links_to_manuals_are_left_out_of_lines() {
    let of = "peer closed connection without sending TLS close_notify";
    let manual = format!("{of}: https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof");
    for (before, after) in [("", "\n"), ("WARN error=", " who=\"r0\"\n"), ("{\"message\":\"", "\",\"target\":\"a\"}\n")]
    {
        assert_eq!(without_manual(&format!("{before}{manual}{after}")), format!("{before}{of}{after}"));
    }
    assert_eq!(without_manual("see https://huggingface.co/a\n"), "see https://huggingface.co/a\n");
}

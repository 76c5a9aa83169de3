use std::sync::Arc;

use super::*;

#[test]
fn a_status_is_logged_without_rust_debug_text() {
    let mut status = tonic::Status::unknown("broken connection");
    status.set_source(Arc::new(std::io::Error::other("connection reset by peer")));
    assert_eq!(status_text(&status), "broken connection: connection reset by peer");
    assert_eq!(status_text(&tonic::Status::unavailable("")), tonic::Code::Unavailable.to_string());
}

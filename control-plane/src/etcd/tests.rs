use std::sync::Arc;

use super::*;

#[test]
fn errors_are_logged_without_rust_debug_text() {
    let mut status = tonic::Status::unknown("transport error");
    let refused = std::io::Error::other("connection refused");
    status.set_source(Arc::new(refused));
    let shown = |error: Error| read_error(error).to_string();
    assert_eq!(shown(Error::GRpcStatus(status)), "the store is unavailable: transport error: connection refused");
    assert_eq!(shown(Error::WatchError("closed".into())), "the store is unavailable: watch error: closed");
}

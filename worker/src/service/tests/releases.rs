//! Routers of other releases.

use super::*;

#[tokio::test]
async fn routers_of_the_next_protocol_are_served_and_others_are_rejected_by_name() {
    let service = engine(EngineOptions::default());
    let mut client = EngineClient::new(service.clone().into_server());
    for number in [protocol::NUMBER - 1, protocol::NUMBER, protocol::NUMBER + 1] {
        let ask = InfoRequest { protocol: number, version: "0.9.0".into() };
        let info = client.info(ask).await.expect("served").into_inner();
        assert_eq!((info.protocol, &info.version[..]), (protocol::NUMBER, protocol::VERSION));
        assert!(open(&service, Start { protocol: number, ..request(&[10]) }).await.is_ok());
    }
    let number = protocol::NUMBER + 2;
    let info = client.info(InfoRequest { protocol: number, version: "9.0.0".into() }).await.expect_err("refused");
    let start = Start { protocol: number, version: "9.0.0".into(), ..request(&[10]) };
    let start = open(&service, start).await.err().expect("refused");
    for status in [info, start] {
        assert_eq!(status.code(), Code::FailedPrecondition);
        let named = format!("the router speaks protocol {number} (9.0.0)");
        assert!(status.message().contains(&named), "{status}");
    }
}

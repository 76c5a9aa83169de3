use rein_proto::v1;

use super::*;

fn estimate(path: &str, message: &impl Message) -> Result<usize, Error> {
    SHAPES.estimate(SHAPES.inputs[path], &message.encode_to_vec())
}

#[test]
fn every_call_has_a_shape_and_its_messages_nested_values_count() {
    assert_eq!(SHAPES.inputs.len(), 9, "{:?}", SHAPES.inputs.keys());
    let call = v1::ToolCall { id: "a".into(), name: "f".into(), arguments: "{}".into() };
    let message = |tool_calls| v1::Message { role: "user".into(), tool_calls, ..v1::Message::default() };
    let chat = |messages| v1::ChatRequest { messages, ..v1::ChatRequest::default() };
    let path = "/rein.v1.Inference/Chat";
    let one = estimate(path, &chat(vec![message(vec![call.clone()])])).unwrap();
    assert!((2 * NESTED..3 * NESTED).contains(&one), "{one}");
    // Each has two bytes on the wire.
    let many = chat(vec![v1::Message::default(); 1_000_000]);
    assert_eq!(estimate(path, &many).unwrap_err().code, Some("too_many_values"));
    assert_eq!(estimate(path, &chat(vec![message(vec![call; 200_000])])).unwrap_err().code, Some("too_many_values"));
    let prompt = v1::complete_request::Prompt::TokenIds(v1::TokenIds { ids: vec![1; 5_000_000] });
    let ids = v1::CompleteRequest { prompt: Some(prompt), ..v1::CompleteRequest::default() };
    assert!(estimate("/rein.v1.Inference/Complete", &ids).unwrap() > 5_000_000);
    let text = chat(vec![v1::Message { content: Some("x".repeat(20 << 20)), ..v1::Message::default() }]);
    assert!(estimate(path, &text).unwrap() > 20 << 20);
}

#[test]
fn invalid_bytes_are_left_to_the_decoder() {
    let shape = SHAPES.inputs["/rein.v1.Inference/Chat"];
    for bytes in [&[0xff; 11][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], &[0x0b], &[], &[0x0a, 5, 1]] {
        assert!(SHAPES.estimate(shape, bytes).is_ok(), "{bytes:?}");
    }
}

use super::*;

fn said(conversation: &mut Conversation, line: &str) -> String {
    match conversation.read(line) {
        LineMeaning::Say(text) => text,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn commands_change_the_conversation_and_say_what_they_did() {
    let mut conversation = Conversation::default();
    assert_eq!(said(&mut conversation, "/undo"), "nothing was asked yet");
    assert_eq!(said(&mut conversation, "/retry"), "nothing was asked yet");
    assert_eq!(conversation.read("Hi"), LineMeaning::Ask);
    conversation.messages.push(json!({"role": "assistant", "content": "Yo"}));
    assert_eq!(conversation.read("/retry"), LineMeaning::Ask);
    assert_eq!(conversation.messages, [json!({"role": "user", "content": "Hi"})]);
    said(&mut conversation, "/system Be brief.");
    said(&mut conversation, "/set temperature 0.5");
    said(&mut conversation, "/set reasoning_effort low");
    assert!(said(&mut conversation, "/tools examples").contains("current_time, roll_dice"));
    let request = conversation.request("m");
    assert_eq!(request["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!((&request["temperature"], &request["reasoning_effort"]), (&json!(0.5), &json!("low")));
    assert_eq!(request["tools"].as_array().map(Vec::len), Some(2));
    assert!(
        said(&mut conversation, "/set speed 9").starts_with("there is no setting speed; there are frequency_penalty")
    );
    assert_eq!(said(&mut conversation, "/set temperature"), "temperature is the server's again");
    assert_eq!(said(&mut conversation, "/tools off"), "no tools");
    assert_eq!(said(&mut conversation, "/undo"), "taken back; 0 messages");
    assert!(said(&mut conversation, "/nothing").contains("/help lists them"));
    assert!(said(&mut conversation, "/tools /no/such/file").starts_with("/no/such/file: "));
    assert_eq!(conversation.read("/exit"), LineMeaning::Leave);
    // The help names every command.
    for name in ["new", "system", "tools", "set", "undo", "retry", "reasoning", "save", "load", "exit"] {
        assert!(HELP.contains(&format!("\n/{name} ")) || HELP.starts_with(&format!("/{name} ")), "{name}");
    }
}

#[test]
fn a_conversation_is_saved_and_loaded() {
    let path = std::env::temp_dir().join(format!("rein-chat-{}.json", std::process::id()));
    let path = path.to_str().expect("UTF-8");
    let mut conversation = Conversation::default();
    for line in ["/system Be brief.", "/tools examples", "/set seed 7"] {
        said(&mut conversation, line);
    }
    conversation.add_user("Hi");
    assert_eq!(said(&mut conversation, &format!("/save {path}")), format!("1 messages saved in {path}"));
    let mut other = Conversation::default();
    assert_eq!(said(&mut other, &format!("/load {path}")), format!("1 messages of {path}"));
    assert_eq!(other.request("m"), conversation.request("m"));
    // A plain list of messages, as other programs write.
    fs::write(path, r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#).expect("written");
    assert_eq!(said(&mut other, &format!("/load {path}")), format!("2 messages of {path}"));
    fs::write(path, "{}").expect("written");
    assert!(said(&mut other, &format!("/load {path}")).ends_with("has no messages"));
    fs::remove_file(path).expect("removed");
}

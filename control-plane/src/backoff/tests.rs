use super::*;

#[test]
fn an_outage_logs_each_message_once_and_ends_when_nothing_fails_any_more() {
    let mut outage = Outage::new();
    for _ in 0..3 {
        outage.enter();
    }
    let new = ["watch", "watch", "session", "watch"].map(|message| outage.is_new(message));
    assert_eq!(new, [true, false, true, false]);
    assert_eq!([outage.leave(), outage.leave(), outage.leave()], [false, false, true]);

    outage.enter();
    assert!(outage.is_new("watch"), "the next outage");
}

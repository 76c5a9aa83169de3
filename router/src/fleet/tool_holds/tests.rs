//! Holds of conversations whose tools run.

use super::*;

const SIZE: u32 = 4;

fn prompt(tokens: &[u32]) -> TurnPrompt {
    TurnPrompt::new("", tokens, SIZE)
}

fn counts(holds: &ToolHolds) -> [u64; 3] {
    [holds.held.get(), holds.returned.get(), holds.late.get()]
}

#[tokio::test(start_paused = true)]
async fn a_conversation_is_held_for_as_long_as_its_tools_take() {
    let holds = ToolHolds::new(Duration::from_secs(60));
    let seconds = Duration::from_secs;
    let tokens: Vec<u32> = (0..100).collect();
    let began = Instant::now();
    // Another one, that never comes back.
    assert_eq!(holds.ended(&prompt(&[7; 10]), None, began), Some(seconds(60)));
    assert_eq!(holds.ended(&prompt(&tokens[..10]), None, began), Some(seconds(60)));
    let mut now = began + seconds(5);
    holds.arrived("tenant", &tokens[..20], now);
    assert_eq!(counts(&holds), [2, 0, 0], "of another tenant");
    holds.arrived("", &tokens[..20], now);
    assert_eq!(counts(&holds), [2, 1, 0]);
    for turn in 2..9 {
        assert_eq!(holds.ended(&prompt(&tokens[..turn * 10]), None, now), Some(seconds(10)), "twice the median");
        now += seconds(5);
        holds.arrived("", &tokens[..turn * 10 + 5], now);
    }
    assert_eq!(holds.ended(&prompt(&tokens[..95]), None, now), Some(seconds(10)));
    holds.arrived("", &tokens, now + seconds(30));
    assert_eq!(counts(&holds), [10, 8, 1]);
    // It came back once.
    holds.arrived("", &tokens, now + seconds(31));
    assert_eq!(counts(&holds), [10, 8, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_named_session_keeps_its_times_when_its_history_changes() {
    let holds = ToolHolds::new(Duration::from_secs(60));
    let now = Instant::now();
    holds.ended(&prompt(&[1; 10]), Some(3), now);
    holds.arrived("", &[1; 20], now + Duration::from_millis(200));
    let again = holds.ended(&prompt(&[2; 10]), Some(3), now);
    assert_eq!(again, Some(limits::TOOL_HOLD.0), "not less");
    assert_eq!(ToolHolds::new(Duration::ZERO).ended(&prompt(&[2; 10]), Some(3), now), None);
    assert_eq!(holds.ended(&prompt(&[2; 3]), None, now), None, "without a full block");
}

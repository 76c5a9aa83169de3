use rein_proto::internal::{After, BlockLoad, LoraPart, Sampling};

use super::*;

#[test]
fn followers_get_what_they_compute_and_no_more() {
    let (vocab, prompt) = (163_840, 8_192);
    let draw = Draw {
        sampling: Some(Sampling { repetition_penalty: 1.1, ..Sampling::default() }),
        mask: Some(vec![255; vocab / 8].into()),
        banned: vec![1],
        history: vec![100_000; prompt + 1_000],
        prompt_length: prompt as u32,
        logprobs: 5,
        ..Draw::default()
    };
    let row = |slot| Row { slot, lora: Some(2), tokens: vec![7], draws: vec![draw.clone()], ..Row::default() };
    let rows = (0..64).map(|slot| Row { after: After::Draw as i32, start: 9_191, ..row(slot) }).collect();
    let loras = vec![LoraPart { slot: 1, ..LoraPart::default() }];
    let loads = vec![BlockLoad { block: 3, place: 4, content: 5 }];
    let save = BlockSave { block: 1, place: 2, content: 8, ..BlockSave::default() };
    let named = BlockSave { parent: Some(7), salt: "tenant".into(), tokens: vec![100_000; 64], ..save.clone() };
    let step = Step { epoch: 3, id: 9, rows, dropped: vec![70], layout: 2, loras, saves: vec![named], loads };
    let shared = for_followers(&step);
    let (all, sent) = (step.encoded_len(), shared.encoded_len());
    assert!(all > 3_000_000 && sent < 2_000, "{all} bytes, {sent} are sent");
    let kept = Draw { logprobs: 5, ..Draw::default() };
    let rows = step.rows.iter().map(|row| Row { draws: vec![kept.clone()], ..row.clone() }).collect();
    assert_eq!(shared, Step { rows, saves: vec![save], ..step });
}

use bytes::Bytes;

use super::super::LoraModule;
use super::*;

fn lora(digest: u64, bytes: usize, modules: usize) -> Arc<Lora> {
    let module = |i: usize| LoraModule {
        module: format!("m{i}").into(),
        rank: 1,
        down: Bytes::from(vec![0; STEP_BYTES / 2]),
        up: Bytes::from(vec![0; STEP_BYTES / 4]),
    };
    Arc::new(Lora { digest, rank: 1, bytes, modules: (0..modules).map(module).collect() })
}

/// Sends everything that is pending; for each step the parts' slots and modules.
fn steps(slots: &mut LoraSlots) -> Vec<Vec<(u32, String)>> {
    let mut steps = Vec::new();
    while slots.has_parts() {
        let (parts, whole) = slots.take_parts();
        steps.push(parts.into_iter().map(|part| (part.slot, part.module)).collect());
        whole.into_iter().for_each(|slot| drop(slots.arrived(slot)));
    }
    steps
}

fn names(slots: &LoraSlots) -> Vec<(&str, u64)> {
    slots.ready().map(|lora| (&*lora.name, lora.digest)).collect()
}

#[test]
fn an_adapter_comes_with_several_steps_and_can_be_had_after_the_last() {
    let mut slots = LoraSlots::new(2, 100);
    slots.load("a", "/a", lora(7, 10, 5)).expect("a slot");
    let (first, whole) = slots.take_parts();
    assert_eq!((first.len(), whole.len()), (2, 0));
    assert!(names(&slots).is_empty() && slots.open("a", 7).is_none());
    assert_eq!(steps(&mut slots).iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(names(&slots), [("a", 7)]);
    assert_eq!((slots.open("a", 8), slots.open("b", 7), slots.open("a", 7)), (None, None, Some(0)));
}

#[test]
fn an_adapter_that_leaves_stays_for_its_sequences() {
    let mut slots = LoraSlots::new(1, 100);
    slots.load("a", "/a", lora(7, 10, 1)).expect("a slot");
    steps(&mut slots);
    let slot = slots.open("a", 7).expect("it is there");
    assert_eq!(slots.open("a", 7), Some(slot));
    assert!(slots.unload("a") && !slots.unload("a"));
    assert!(names(&slots).is_empty() && slots.open("a", 7).is_none() && !slots.has_parts());
    assert_eq!(slots.load("b", "/b", lora(8, 10, 1)), Err(NoLoraSlot::Slots(1)));
    slots.close(slot);
    assert!(!slots.has_parts());
    slots.close(slot);
    slots.load("b", "/b", lora(8, 10, 1)).expect("the slot is free");
    // It is emptied before the next adapter comes: that one may have fewer modules.
    assert_eq!(steps(&mut slots), [vec![(0, String::new()), (0, "m0".to_owned())]]);
    assert_eq!(names(&slots), [("b", 8)]);
}

#[test]
fn a_replacement_takes_over_when_it_is_whole() {
    let mut slots = LoraSlots::new(2, 100);
    slots.load("a", "/a", lora(7, 10, 1)).expect("a slot");
    steps(&mut slots);
    let old = slots.open("a", 7).expect("it is there");
    slots.load("a", "/b", lora(8, 10, 1)).expect("a second slot");
    assert_eq!(names(&slots), [("a", 7)]);
    steps(&mut slots);
    assert_eq!(names(&slots), [("a", 8)]);
    assert_ne!(slots.open("a", 8), Some(old));
    slots.close(old);
    assert_eq!(steps(&mut slots), [vec![(old, String::new())]]);
}

#[test]
fn a_slot_of_a_failed_step_is_emptied() {
    let mut slots = LoraSlots::new(1, 100);
    slots.load("a", "/a", lora(7, 10, 5)).expect("a slot");
    assert_eq!(slots.take_parts().0.len(), 2);
    slots.lost(0);
    assert_eq!(steps(&mut slots), [vec![(0, String::new())]]);
    assert!(names(&slots).is_empty());
    slots.load("a", "/a", lora(7, 10, 1)).expect("the slot is free");
    steps(&mut slots);
    assert_eq!(names(&slots), [("a", 7)]);
}

#[test]
fn the_room_of_a_rank_is_a_limit() {
    let mut slots = LoraSlots::new(4, 25);
    slots.load("a", "/a", lora(1, 10, 1)).expect("room");
    slots.load("b", "/b", lora(2, 10, 1)).expect("room");
    let full = slots.load("c", "/c", lora(3, 10, 1)).expect_err("no room");
    assert_eq!(full, NoLoraSlot::Room { left: 5, room: 25, bytes: 10 });
    steps(&mut slots);
    slots.unload("a");
    slots.load("c", "/c", lora(3, 10, 1)).expect("room again");
}

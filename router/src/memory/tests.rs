use std::time::Duration;

use super::*;
use crate::error::ErrorKind;

#[tokio::test(start_paused = true)]
async fn requests_share_the_budget_return_it_on_drop_and_small_ones_are_free() {
    let memory = RequestMemory::new(&MemoryLimits::default());
    let until = Instant::now() + Duration::from_secs(60);
    let (mut first, mut second, mut small) = (memory.open_charge(), memory.open_charge(), memory.open_charge());
    first.resize(limits::BODY_MEMORY_BYTES - UNIT, until).await.unwrap();
    let began = Instant::now();
    let error = second.resize(limits::BODY_MEMORY_BYTES / 2, until).await.unwrap_err();
    assert_eq!((error.kind, began.elapsed()), (ErrorKind::Full, limits::MEMORY_WAIT));
    small.resize(limits::UNCOUNTED_BODY_BYTES, until).await.unwrap();
    first.resize(limits::BODY_MEMORY_BYTES / 4, until).await.unwrap();
    second.resize(limits::BODY_MEMORY_BYTES / 2, until).await.unwrap();
    drop((first, second));
    assert_eq!(memory.bodies.units.available_permits() * UNIT, limits::BODY_MEMORY_BYTES);
}

#[test]
fn a_charge_grows_only_into_free_memory_and_returns_what_it_no_longer_needs() {
    let matchers = RequestMemory::new(&MemoryLimits { matchers: 10 * UNIT, ..MemoryLimits::default() }).matchers.budget;
    let (mut first, mut second) = (matchers.open_charge(UNIT), matchers.open_charge(0));
    first.try_resize(UNIT).unwrap();
    assert_eq!(matchers.units.available_permits(), 10);
    first.try_resize(8 * UNIT).unwrap();
    second.try_resize(3 * UNIT).unwrap();
    assert_eq!(second.try_resize(4 * UNIT).unwrap_err().kind, ErrorKind::Full);
    first.try_resize(2 * UNIT).unwrap();
    second.try_resize(9 * UNIT).unwrap();
    assert_eq!(matchers.units.available_permits(), 0);
    drop((first, second));
    assert_eq!(matchers.units.available_permits(), 10);
}

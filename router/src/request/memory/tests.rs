use std::time::Duration;

use super::*;
use crate::error::ErrorKind;

#[tokio::test(start_paused = true)]
async fn requests_share_the_budget_return_it_on_drop_and_small_ones_are_free() {
    let memory = RequestMemory::new(1);
    let until = Instant::now() + Duration::from_secs(60);
    let (mut first, mut second, mut small) = (memory.open_charge(), memory.open_charge(), memory.open_charge());
    first.resize(limits::BODY_MEMORY_BYTES - UNIT, until).await.unwrap();
    let began = Instant::now();
    let error = second.resize(limits::BODY_MEMORY_BYTES / 2, until).await.unwrap_err();
    assert_eq!((error.kind, began.elapsed()), (ErrorKind::Full, limits::BODY_MEMORY_WAIT));
    small.resize(limits::UNCOUNTED_BODY_BYTES, until).await.unwrap();
    first.resize(limits::BODY_MEMORY_BYTES / 4, until).await.unwrap();
    second.resize(limits::BODY_MEMORY_BYTES / 2, until).await.unwrap();
    drop((first, second));
    assert_eq!(memory.budget.available_permits() * UNIT, limits::BODY_MEMORY_BYTES);
}

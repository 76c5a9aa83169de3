use rein_control_plane::MemoryStore;
use rein_router::seal::{SealContext, SealPurpose};

use super::*;

const CONTEXT: SealContext<'static> = SealContext { purpose: SealPurpose::Thinking, model: "demo", caller: None };
const KEY: &str = "/rein/c/seal";

async fn sealed(seal: &Seal) -> String {
    while seal.seal(CONTEXT, b"text").is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    seal.seal(CONTEXT, b"text")
}

#[tokio::test(start_paused = true)]
async fn every_router_opens_what_another_one_sealed_also_after_the_store_lost_the_key() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let seals: Vec<Seal> = (0..3).map(|_| Seal::default()).collect();
    for seal in &seals {
        tokio::spawn(share(seal.clone(), store.clone(), KEY.into()));
    }
    let text = sealed(&seals[0]).await;
    for seal in &seals {
        sealed(seal).await;
        assert_eq!(seal.open(CONTEXT, &text).as_deref(), Some(&b"text"[..]));
    }
    assert!(store.commit(Transaction::default().delete(KEY)).await.expect("a store").is_some());
    sleep(2 * CHECK_INTERVAL).await;
    let late = Seal::default();
    tokio::spawn(share(late.clone(), store, KEY.into()));
    sealed(&late).await;
    assert_eq!(late.open(CONTEXT, &text).as_deref(), Some(&b"text"[..]), "a router that started later");
}

#[test]
fn a_seal_without_a_key_seals_and_opens_nothing() {
    let seal = Seal::default();
    assert_eq!(seal.seal(CONTEXT, b"text"), "");
    assert_eq!(seal.open(CONTEXT, &Seal::random().seal(CONTEXT, b"text")), None);
}

use super::*;

fn lora(name: &str, digest: u64) -> LoraInfo {
    LoraInfo { name: name.into(), digest, path: "/adapters".into(), rank: 8 }
}

#[tokio::test(start_paused = true)]
async fn what_this_router_did_goes_before_an_older_record() {
    let loras = EngineLoras::new(vec![lora("a", 1)]);
    loras.changed("b", Some(lora("b", 2)));
    loras.changed("a", None);
    loras.told(&[lora("a", 1)]);
    assert_eq!(*loras.get(), [lora("b", 2)]);
    loras.changed("b", Some(lora("b", 3)));
    loras.told(&[lora("a", 1), lora("b", 2)]);
    assert_eq!(*loras.get(), [lora("b", 3)]);
    tokio::time::advance(limits::LORA_SETTLE).await;
    loras.told(&[lora("c", 4)]);
    assert_eq!(*loras.get(), [lora("c", 4)]);
}

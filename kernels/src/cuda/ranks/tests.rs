use super::super::arena::DeviceArena;
use super::*;

#[test]
fn ranks_that_can_do_both_use_nccl_for_much_data() {
    for (bytes, want) in [
        (Some(0), ExchangeWay::Peers),
        (Some(MOST_BY_PEERS), ExchangeWay::Peers),
        (Some(MOST_BY_PEERS + 1), ExchangeWay::Nccl),
        // Peers read only what they need of it.
        (None, ExchangeWay::Peers),
    ] {
        assert_eq!(ExchangeWay::of(bytes, MOST_BY_PEERS), want, "{bytes:?}");
    }
    assert_eq!(ExchangeWay::of(Some(1), 0), ExchangeWay::Nccl);
    assert_eq!(ExchangeWay::of(Some(usize::MAX - 1), usize::MAX), ExchangeWay::Peers);
}

/// All ranks find the same number, so they choose the same way.
#[test]
fn what_counts_is_what_the_rank_that_reads_most_reads_of_the_others() {
    let block = Arc::new(DeviceArena::default().nothing());
    let read = |reads: &[&dyn Fn(usize, usize) -> Range<usize>], partly| {
        let offer = |reads| Offer { block: &block, address: 0, reads, partly };
        most_read(&reads.iter().map(|reads| offer(*reads)).collect::<Vec<_>>(), 4)
    };
    let whole = |_, _| 0..100;
    let on_rank_0 = |reader, owner: usize| if reader == 0 { 0..owner * 10 } else { 0..0 };
    assert_eq!(read(&[&whole], false), Some(300));
    assert_eq!(read(&[&on_rank_0], false), Some(10 + 20 + 30));
    assert_eq!(read(&[&whole, &on_rank_0], false), Some(360));
    assert_eq!(read(&[], false), Some(0));
    assert_eq!(read(&[&whole], true), None);
}

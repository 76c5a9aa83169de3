use super::Quantiles;

#[test]
fn quantiles_are_measured_values() {
    let q = Quantiles::of((1..=100).rev().map(f64::from).collect());
    assert_eq!(q, Some(Quantiles { mean: 50.5, p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 }));
    assert_eq!(Quantiles::of(vec![3.0]).map(|q| (q.p50, q.p99)), Some((3.0, 3.0)));
    assert_eq!(Quantiles::of(Vec::new()), None);
}

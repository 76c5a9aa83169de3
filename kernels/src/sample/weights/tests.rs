use super::*;

#[test]
fn exponentials_are_exact_to_two_units() {
    assert_eq!(exp(0.0), 1.0);
    let mut worst: f64 = 0.0;
    for i in 0..2_000_000 {
        let x = -f64::from(i) * 3.53e-4;
        let (got, want) = (exp(x), x.exp());
        worst = worst.max((got - want).abs() / (want * f64::EPSILON));
    }
    assert!(worst <= 2.0, "{worst}");
    for (x, want) in [(-708.5, 0.0), (f64::NEG_INFINITY, 0.0), (f64::NAN, 0.0), (-1e300, 0.0)] {
        assert_eq!(exp(x), want, "{x}");
    }
}

#[test]
fn all_sets_have_the_same_bits() {
    let logits: Vec<f32> = (0..1003).map(|i| ((i * 7919) % 1009) as f32 / 40.0 - 20.0).collect();
    let (mut fast, mut plain) = (vec![0.0; 1003], vec![0.0; 1003]);
    weigh(&logits, 5.5, 0.7, &mut fast);
    weigh_plainly(&logits, 5.5, 0.7, &mut plain);
    assert_eq!(fast, plain);
}

#[test]
fn odd_logits_have_no_weight_or_all_of_it() {
    let mut weights = [0.0; 4];
    weigh(&[f32::NAN, f32::NEG_INFINITY, 1.0, 1.0], 1.0, 2.0, &mut weights);
    assert_eq!(weights, [0.0, 0.0, 1.0, 1.0]);
    weigh(&[f32::INFINITY, f32::NAN, 1.0, f32::INFINITY], f32::INFINITY, 2.0, &mut weights);
    assert_eq!(weights, [1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn a_share_is_found_where_the_running_sum_exceeds_it() {
    let weights: Vec<f64> = (0..2000).map(|i| f64::from(u8::from(i % 3 == 1))).collect();
    let count = 666.0 + 1.0;
    for (nth, place) in [(0.0, 1), (0.9, 1), (1.0, 4), (300.5, 901), (666.5, 1999)] {
        assert_eq!(find(&weights, nth / count), Some(place), "{nth}");
    }
    assert_eq!(find(&weights, 1.0 - f64::EPSILON / 2.0), Some(1999));
    assert_eq!(find(&[0.0; 600], 0.5), None);
    assert_eq!(find(&[], 0.0), None);
}

/// The same numbers as in kernels/cuda/tests/draw.h.
#[test]
fn bits_are_those_of_the_kernels() {
    let bits = [-0.1, -1.0, -10.5, -700.25].map(|x| exp(x).to_bits());
    assert_eq!(
        bits,
        [4_606_325_270_462_671_674, 4_600_298_746_774_613_816, 4_538_748_550_476_374_202, 57_128_419_154_484_366]
    );
}

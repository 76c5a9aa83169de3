use super::*;

#[test]
fn the_metric_finds_the_largest_difference_and_the_angle() {
    let want = [3.0, -4.0, 0.0, 0.0];
    assert_eq!(difference(&want, &want).max, 0.0);
    assert!(difference(&want, &want).within(1e-12));
    let d = difference(&[3.0, -4.0, 0.25, 0.0], &want);
    assert!((d.max - 0.1).abs() < 1e-12 && d.at == 2 && d.angle > 0.0);
    assert!(!difference(&[f32::NAN, -4.0, 0.0, 0.0], &want).within(1e9));
    assert!(difference(&[f32::NAN, 1.0], &[f32::NAN, 1.0]).within(0.0));
    assert!(!difference(&[1.0], &[1.0, 2.0]).within(1e9));
    assert!(difference(&[0.0; 3], &[0.0; 3]).within(0.0));
    assert!(!difference(&[1e-3; 3], &[0.0; 3]).within(0.5));
}

#[test]
fn a_relative_difference_counts_from_the_size_of_the_results() {
    // The rms is 2.5.
    let want = [4.0, -3.0, 0.0, 0.0];
    let apart = |got: &[f32]| worst_number(got, &want).apart;
    assert_eq!(apart(&want), 0.0);
    assert_eq!(apart(&[4.65, -3.0, 0.0, 0.0]), f64::from(4.65f32 - 4.0) / 6.5);
    assert_eq!(apart(&[4.0, -3.0, 0.25, 0.0]), 0.1);
    assert_eq!(apart(&want[..3]), f64::INFINITY);
    assert_eq!(apart(&[f32::NAN, -3.0, 0.0, 0.0]), f64::INFINITY);
    let got = [4.0, -3.0, 0.25, 0.5];
    assert_eq!(worst_number(&got, &want).to_string(), "number 3 is 0.5, expected 0");
    assert_eq!([count_beyond(&got, &want, 0.05), count_beyond(&got, &want, 0.1)], [2, 1]);
}

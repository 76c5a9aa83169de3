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
    assert_eq!(relative_difference(&want, &want), 0.0);
    assert_eq!(relative_difference(&[4.65, -3.0, 0.0, 0.0], &want), f64::from(4.65f32 - 4.0) / 6.5);
    assert_eq!(relative_difference(&[4.0, -3.0, 0.25, 0.0], &want), 0.1);
    assert_eq!(relative_difference(&want[..3], &want), f64::INFINITY);
    assert_eq!(relative_difference(&[f32::NAN, -3.0, 0.0, 0.0], &want), f64::INFINITY);
}

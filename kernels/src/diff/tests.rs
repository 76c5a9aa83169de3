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

use super::*;

#[tokio::test(start_paused = true)]
async fn older_rows_have_less_weight() {
    let mut usage = Usage::new(vec![vec![], vec![10, 0]]);
    let began = Instant::now();
    let counted = |a, b| Some(vec![vec![], vec![a, b]]);
    assert_eq!(usage.add(began + EXPERTS_CHECK_INTERVAL / 2, || counted(20, 0)), None, "too early");
    assert_eq!(usage.add(began + EXPERTS_CHECK_INTERVAL, || counted(10, 0)), None, "nothing new");
    let later = began + EXPERTS_HALF_LIFE;
    assert_eq!(usage.add(later, || counted(110, 40)), Some(vec![vec![], vec![100, 40]]));
    assert_eq!(usage.add(later + EXPERTS_HALF_LIFE, || counted(110, 50)), Some(vec![vec![], vec![50, 30]]));
}

use super::*;

fn spec(top_k: usize, scoring: Scoring) -> RouteSpec {
    RouteSpec { top_k, scoring, n_group: 1, topk_group: 1, normalize: false, scaling: 1.0 }
}

#[test]
fn ties_go_to_the_lowest_index_and_nan_is_never_chosen() {
    let mut out = Vec::new();
    top_k(&[1.0, 3.0, 3.0, f32::NAN, 2.0, 3.0], 4, &mut out);
    assert_eq!(out, [1, 2, 5, 4]);
    top_k(&[f32::NAN, f32::NEG_INFINITY], 2, &mut out);
    assert_eq!(out, [1, 0]);
    top_k(&[0.0; 5], 3, &mut out);
    assert_eq!(out, [0, 1, 2]);
}

#[test]
fn softmax_weights_are_probabilities_over_all_experts() {
    let pool = ThreadPool::new(1);
    let scores = [0.0f32, 1.0, 2.0, 3.0];
    let routes = route(&pool, &scores, 4, None, &spec(2, Scoring::Softmax));
    let total: f32 = scores.iter().map(|s| s.exp()).sum();
    assert_eq!(routes.experts, [3, 2]);
    assert!((routes.weights[0] - 3f32.exp() / total).abs() < 1e-6);
    let routes = route(&pool, &scores, 4, None, &RouteSpec { normalize: true, ..spec(2, Scoring::Softmax) });
    assert!((routes.weights[0] + routes.weights[1] - 1.0).abs() < 1e-6);
}

#[test]
fn the_bias_affects_the_choice_but_not_the_weights() {
    let pool = ThreadPool::new(2);
    let scores: Vec<f32> = [1.0f32, 0.5, -1.0, -2.0].repeat(40);
    let bias = [0.0, 0.0, 0.0, 5.0];
    let spec = RouteSpec { scaling: 2.5, normalize: true, ..spec(2, Scoring::Sigmoid) };
    let routes = route(&pool, &scores, 4, Some(&bias), &spec);
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    for row in 0..40 {
        assert_eq!(routes.experts[2 * row..][..2], [3, 0]);
        let want = 2.5 * sigmoid(-2.0) / (sigmoid(-2.0) + sigmoid(1.0));
        assert!((routes.weights[2 * row] - want).abs() < 1e-6);
    }
}

#[test]
fn groups_limit_the_choice() {
    // Groups {0,1}, {2,3}, {4,5}: the first and the last have the largest sums of their two best.
    let scores = [2.0f32, 1.9, 3.0, -9.0, 1.0, 2.9];
    let spec = RouteSpec { n_group: 3, topk_group: 2, ..spec(3, Scoring::Sigmoid) };
    let routes = route(&ThreadPool::new(1), &scores, 6, None, &spec);
    assert_eq!(routes.experts, [5, 0, 1]);
}

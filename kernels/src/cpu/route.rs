//! Choice of experts, as transformers' DeepseekV3TopkRouter (sigmoid, groups, correction bias) and the softmax routers
//! of Mixtral and Qwen3-MoE make it.

use super::pool::{Pool, SharedPtr};
use crate::backend::{RouteSpec, Routes, Scoring};

/// Guards the normalisation of weights that are all zero.
const EPSILON: f32 = 1e-20;

/// Larger first, NaN last; equal values keep the lower index first.
fn better(a: f32, b: f32) -> bool {
    a > b || (b.is_nan() && !a.is_nan())
}

/// Indices of the k best values, best first.
fn top_k(values: &[f32], k: usize, out: &mut Vec<usize>) {
    out.clear();
    for (i, &value) in values.iter().enumerate() {
        if out.len() == k && !better(value, values[out[k - 1]]) {
            continue;
        }
        let at = out.partition_point(|&j| !better(value, values[j]));
        out.truncate(k - usize::from(out.len() == k));
        out.insert(at.min(out.len()), i);
    }
}

pub fn route(pool: &Pool, scores: &[f32], experts: usize, bias: Option<&[f32]>, spec: &RouteSpec) -> Routes {
    let rows = scores.len() / experts.max(1);
    let k = spec.top_k;
    assert!(k <= experts, "top_k {k} of {experts} experts");
    assert!(bias.is_none_or(|b| b.len() == experts), "routing bias and scores differ in the number of experts");
    let mut routes = Routes { top_k: k, experts: vec![0; rows * k], weights: vec![0.0; rows * k] };
    let (ids, weights) = (SharedPtr(routes.experts.as_mut_ptr()), SharedPtr(routes.weights.as_mut_ptr()));
    let per_item = 16;
    pool.run(rows.div_ceil(per_item), &|item| {
        for row in item * per_item..rows.min((item + 1) * per_item) {
            // SAFETY: rows * k entries each; row's k are written by this item only.
            let (ids, weights) = unsafe {
                (
                    std::slice::from_raw_parts_mut(ids.get().add(row * k), k),
                    std::slice::from_raw_parts_mut(weights.get().add(row * k), k),
                )
            };
            route_row(&scores[row * experts..][..experts], bias, spec, ids, weights);
        }
    });
    routes
}

fn route_row(scores: &[f32], bias: Option<&[f32]>, spec: &RouteSpec, ids: &mut [u32], weights: &mut [f32]) {
    let experts = scores.len();
    let probabilities: Vec<f32> = match spec.scoring {
        Scoring::Sigmoid => scores.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Scoring::Softmax => {
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps: Vec<f32> = scores.iter().map(|x| (x - max).exp()).collect();
            let sum: f32 = exps.iter().sum();
            exps.iter().map(|e| e / sum).collect()
        }
    };
    let mut choice = match bias {
        Some(bias) => probabilities.iter().zip(bias).map(|(p, b)| p + b).collect(),
        None => probabilities.clone(),
    };
    let mut best = Vec::new();
    if spec.n_group > 1 && spec.topk_group < spec.n_group {
        let size = experts / spec.n_group;
        let mut top = Vec::new();
        let groups: Vec<f32> = choice
            .chunks(size)
            .map(|group| {
                top_k(group, 2.min(size), &mut top);
                top.iter().map(|&i| group[i]).sum()
            })
            .collect();
        top_k(&groups, spec.topk_group, &mut best);
        for (g, group) in choice.chunks_mut(size).enumerate() {
            if !best.contains(&g) {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
    top_k(&choice, ids.len(), &mut best);
    for ((id, weight), &expert) in ids.iter_mut().zip(weights.iter_mut()).zip(&best) {
        *id = expert as u32;
        *weight = probabilities[expert];
    }
    if spec.normalize {
        let sum = weights.iter().sum::<f32>() + EPSILON;
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= spec.scaling);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(top_k: usize, scoring: Scoring) -> RouteSpec {
        RouteSpec { top_k, scoring, n_group: 1, topk_group: 1, normalize: false, scaling: 1.0 }
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_nan_loses() {
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
        let pool = Pool::new(1);
        let scores = [0.0f32, 1.0, 2.0, 3.0];
        let routes = route(&pool, &scores, 4, None, &spec(2, Scoring::Softmax));
        let total: f32 = scores.iter().map(|s| s.exp()).sum();
        assert_eq!(routes.experts, [3, 2]);
        assert!((routes.weights[0] - 3f32.exp() / total).abs() < 1e-6);
        let routes = route(&pool, &scores, 4, None, &RouteSpec { normalize: true, ..spec(2, Scoring::Softmax) });
        assert!((routes.weights[0] + routes.weights[1] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let pool = Pool::new(2);
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
        // Groups {0,1}, {2,3}, {4,5}: sums of the two best are led by the first and the last.
        let scores = [2.0f32, 1.9, 3.0, -9.0, 1.0, 2.9];
        let spec = RouteSpec { n_group: 3, topk_group: 2, ..spec(3, Scoring::Sigmoid) };
        let routes = route(&Pool::new(1), &scores, 6, None, &spec);
        assert_eq!(routes.experts, [5, 0, 1]);
    }
}

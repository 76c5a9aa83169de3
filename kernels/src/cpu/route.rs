//! The choice of experts, as in transformers' DeepseekV3TopkRouter (sigmoid, groups, correction bias) and in the
//! softmax routers of Mixtral and Qwen3-MoE.

use super::pool::{SharedPtr, ThreadPool};
use crate::backend::{RouteSpec, Scoring};

/// Prevents a division by zero if all weights are zero.
const EPSILON: f32 = 1e-20;

/// For each row, `top_k` experts (global ids) with their weights.
#[derive(Debug, Clone)]
pub struct Routes {
    pub top_k: usize,
    pub experts: Vec<u32>,
    pub weights: Vec<f32>,
}

/// Larger values first, NaN last; of equal values the lower index first.
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

pub fn route(pool: &ThreadPool, scores: &[f32], experts: usize, bias: Option<&[f32]>, spec: &RouteSpec) -> Routes {
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
mod tests;

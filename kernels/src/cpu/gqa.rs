//! Grouped-query attention (arXiv:2305.13245).

use super::attention::{self, AttentionPlan, EntryField, LanePart, QueryPart};
use super::kv_cache::KvCache;
use super::lanes::LaneQueries;
use super::{Batch, Cpu, Tensor, shape, zeros};
use crate::backend::{GqaSpec, Span};
use crate::error::Result;

impl Cpu {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn gqa_attention(
        &self,
        batch: &Batch,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        sinks: Option<&Vec<f32>>,
        cache: &mut KvCache,
        spec: &GqaSpec,
    ) -> Tensor {
        store(batch, q, [k, v], sinks, cache, spec);
        let mut out = zeros(q.rows, q.cols);
        let sinks = sinks.map(Vec::as_slice);
        self.attend_groups(cache, &batch.rows.spans, spec, &q.data, sinks, None, &mut out.data);
        out
    }

    /// The same over a cache that is split.
    pub(super) fn attend_split_groups(
        &self,
        batch: &Batch,
        q: &Tensor,
        kv: [&Tensor; 2],
        sinks: Option<&Vec<f32>>,
        cache: &mut KvCache,
        spec: &GqaSpec,
    ) -> Result<Tensor> {
        let Some(split) = cache.split else {
            return Err(shape("split_gqa_attention", "this cache is not split".into()));
        };
        store(batch, q, kv, sinks, cache, spec);
        let GqaSpec { heads, head_dim: width, .. } = *spec;
        let sinks = sinks.map(Vec::as_slice);
        let of = LaneQueries { split, rows: q.rows, heads, width, queries: q.data.to_vec(), sinks };
        self.attend_split(of, |queries, lane, sums| {
            self.attend_groups(cache, &batch.rows.spans, spec, queries, None, Some(lane), sums);
        })
    }

    /// Queries [rows, heads, head_dim].
    #[allow(clippy::too_many_arguments)]
    fn attend_groups(
        &self,
        cache: &KvCache,
        spans: &[Span],
        spec: &GqaSpec,
        q: &[f32],
        sinks: Option<&[f32]>,
        lane: Option<LanePart>,
        out: &mut [f32],
    ) {
        let GqaSpec { heads, kv_heads, head_dim, scale, window } = *spec;
        let part = QueryPart { q, row_stride: heads * head_dim, head_stride: head_dim, offset: 0, width: head_dim };
        let field = |in_v| move |g: usize| EntryField { in_v, offset: g * head_dim, width: head_dim };
        let plan = AttentionPlan {
            parts: &[part],
            kv_heads,
            group: heads / kv_heads,
            keys: &|g| vec![field(false)(g)],
            value: &field(true),
            scale,
            window,
            sinks,
            lane,
        };
        attention::attend(&self.pool, self.isa, cache, spans, &plan, out);
    }
}

/// Stores the rows of k and v, which must have the shapes of the spec.
fn store(
    batch: &Batch,
    q: &Tensor,
    [k, v]: [&Tensor; 2],
    sinks: Option<&Vec<f32>>,
    cache: &mut KvCache,
    spec: &GqaSpec,
) {
    let GqaSpec { heads, kv_heads, head_dim, .. } = *spec;
    assert!(kv_heads > 0 && heads % kv_heads == 0 && q.cols == heads * head_dim, "gqa_attention: {spec:?}");
    assert_eq!((k.cols, v.cols), (cache.width_k, cache.width_v), "gqa_attention: cache widths");
    assert_eq!((k.cols, v.cols), (kv_heads * head_dim, kv_heads * head_dim), "gqa_attention: k and v");
    assert_eq!(batch.len(), q.rows, "gqa_attention: rows");
    assert!(sinks.is_none_or(|sinks| sinks.len() == heads), "gqa_attention: a sink for each head");
    cache.write(&batch.rows.spans, &k.data, &v.data);
}

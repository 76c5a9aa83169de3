//! Grouped-query attention (arXiv:2305.13245).

use super::attention::{self, AttentionPlan, EntryField, QueryPart};
use super::kv_cache::KvCache;
use super::{Batch, Cpu, Tensor, zeros};
use crate::backend::GqaSpec;

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
        let GqaSpec { heads, kv_heads, head_dim, scale, window } = *spec;
        assert!(kv_heads > 0 && heads % kv_heads == 0 && q.cols == heads * head_dim, "gqa_attention: {spec:?}");
        assert_eq!((k.cols, v.cols), (cache.width_k, cache.width_v), "gqa_attention: cache widths");
        assert_eq!((k.cols, v.cols), (kv_heads * head_dim, kv_heads * head_dim), "gqa_attention: k and v");
        assert_eq!(batch.len(), q.rows, "gqa_attention: rows");
        assert!(sinks.is_none_or(|sinks| sinks.len() == heads), "gqa_attention: a sink for each head");
        let spans = &batch.rows.spans;
        cache.write(spans, &k.data, &v.data);
        let part = QueryPart { q: &q.data, row_stride: q.cols, head_stride: head_dim, offset: 0, width: head_dim };
        let field = |in_v| move |g: usize| EntryField { in_v, offset: g * head_dim, width: head_dim };
        let plan = AttentionPlan {
            parts: &[part],
            kv_heads,
            group: heads / kv_heads,
            keys: &|g| vec![field(false)(g)],
            value: &field(true),
            scale,
            window,
            sinks: sinks.map(Vec::as_slice),
            lane: None,
        };
        let mut out = zeros(q.rows, q.cols);
        attention::attend(&self.pool, self.isa, cache, spans, &plan, &mut out.data);
        out
    }
}

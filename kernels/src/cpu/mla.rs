//! Multi-head latent attention with the expansions of keys and values absorbed into queries and results. The cache is
//! read as it is stored.

use super::attention::{self, AttentionPlan, EntryField, LanePart, QueryPart};
use super::gemm::{self, GemmJob, Packed};
use super::kv_cache::KvCache;
use super::lanes::LaneQueries;
use super::pool::SharedPtr;
use super::weights::{Numbers, PackSource, Panels};
use super::{Batch, Cpu, Expansion, LowRank, Tensor, shape, stale, zeros};
use crate::backend::{HostMatrix, KvSplit, MlaSpec, Precision, Span};
use crate::error::Result;

impl Cpu {
    /// `mla_attention`. `stored` gets what a device stores between its products: the absorbed query, and the mean of
    /// the latents.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn attend_latent(
        &self,
        batch: &Batch,
        q: &Tensor,
        [latent, k_rope]: [&Tensor; 2],
        Expansion { to_latent, to_value }: &Expansion,
        adapters: Option<[&LowRank; 2]>,
        cache: &mut KvCache,
        spec: &MlaSpec,
        stored: impl Fn(&mut [f32]),
    ) -> Result<Tensor> {
        let spans = &batch.rows.spans;
        assert_eq!(batch.len(), q.rows, "mla_attention: rows");
        let MlaSpec { heads, nope_dim, rope_dim, v_dim, kv_rank, .. } = *spec;
        let (rows, q_dim) = (q.rows, nope_dim + rope_dim);
        assert_eq!(
            (q.cols, to_latent.len()),
            (heads * q_dim, heads),
            "mla_attention: q must have heads * (nope_dim + rope_dim) columns, and to_latent one matrix per head"
        );
        assert_eq!(
            (latent.cols, k_rope.cols),
            (kv_rank, rope_dim),
            "mla_attention: the latent must have kv_rank columns, and the rotary key rope_dim"
        );
        assert_eq!(
            (cache.width_k, cache.width_v),
            (kv_rank, rope_dim),
            "mla_attention: the cache must have kv_rank and rope_dim columns"
        );
        let mut out = stale(rows, heads * v_dim);
        if rows == 0 {
            return Ok(out);
        }
        cache.write(spans, &latent.data, &k_rope.data);

        // Products of each head with its own weight; packed row h * rows + r is row r of head h.
        let by_head =
            |weights: &[Panels], x: &[f32], ins: usize, at: &(dyn Fn(usize, usize) -> usize + Sync), y: &mut [f32]| {
                let takes = weights[0].takes();
                let groups = std::iter::repeat_n(rows, heads);
                let (tiles, groups) = gemm::cut_groups(gemm::tile_rows(self.isa, takes), groups);
                let packed = Packed::pack(&self.pool, self.isa, tiles, x, ins, takes, &|i| at(i % rows, i / rows));
                let base = SharedPtr(y.as_mut_ptr());
                let outs = weights[0].outs;
                let jobs: Vec<GemmJob> = weights
                    .iter()
                    .zip(groups)
                    .enumerate()
                    .map(|(h, (weight, tiles))| {
                        let out = SharedPtr(base.get().wrapping_add(h * outs));
                        GemmJob { weight, tiles, out, stride: heads * outs, bias: None }
                    })
                    .collect();
                assert_eq!(y.len(), rows * heads * outs, "mla_attention: product");
                // SAFETY: y has heads * outs numbers for each row, of which head h's job writes its own outs.
                unsafe { gemm::multiply(&self.pool, self.isa, &packed, &jobs) };
            };
        let mut query = stale(rows, heads * kv_rank);
        by_head(to_latent, &q.data, nope_dim, &|r, h| (r * heads + h) * q_dim, &mut query.data);
        stored(&mut query.data);
        if let Some([of_query, _]) = adapters {
            self.add_by_head(batch, heads, (&q.data, q_dim, nope_dim), &mut query, of_query);
            stored(&mut query.data);
        }

        let mut mixed = match cache.split {
            None => {
                let parts = [
                    QueryPart {
                        q: &query.data,
                        row_stride: heads * kv_rank,
                        head_stride: kv_rank,
                        offset: 0,
                        width: kv_rank,
                    },
                    QueryPart {
                        q: &q.data,
                        row_stride: heads * q_dim,
                        head_stride: q_dim,
                        offset: nope_dim,
                        width: rope_dim,
                    },
                ];
                let mut mixed = zeros(rows, heads * kv_rank);
                self.mix_latents(cache, spans, spec, &parts, None, &mut mixed.data);
                mixed
            }
            Some(split) => {
                let rotated: Vec<f32> = q.data.chunks(q_dim).flat_map(|q| &q[nope_dim..]).copied().collect();
                self.mix_split(split, cache, spans, spec, &query, &rotated)?
            }
        };
        stored(&mut mixed.data);
        by_head(to_value, &mixed.data, kv_rank, &|r, h| (r * heads + h) * kv_rank, &mut out.data);
        if let Some([_, of_value]) = adapters {
            stored(&mut out.data);
            self.add_by_head(batch, heads, (&mixed.data, kv_rank, kv_rank), &mut out, of_value);
        }
        Ok(out)
    }

    /// The mean of the latents that each query of `spec.heads` heads sees, or of a lane.
    fn mix_latents(
        &self,
        cache: &KvCache,
        spans: &[Span],
        spec: &MlaSpec,
        parts: &[QueryPart],
        lane: Option<LanePart>,
        out: &mut [f32],
    ) {
        let MlaSpec { heads, rope_dim, kv_rank, scale, .. } = *spec;
        let plan = AttentionPlan {
            parts,
            kv_heads: 1,
            group: heads,
            keys: &|_| {
                vec![
                    EntryField { in_v: false, offset: 0, width: kv_rank },
                    EntryField { in_v: true, offset: 0, width: rope_dim },
                ]
            },
            value: &|_| EntryField { in_v: false, offset: 0, width: kv_rank },
            scale,
            window: None,
            sinks: None,
            lane,
        };
        attention::attend(&self.pool, self.isa, cache, spans, &plan, out);
    }

    /// The same over a cache that is split. `rotated` [rows, heads, rope_dim].
    fn mix_split(
        &self,
        split: KvSplit,
        cache: &KvCache,
        spans: &[Span],
        spec: &MlaSpec,
        query: &Tensor,
        rotated: &[f32],
    ) -> Result<Tensor> {
        let MlaSpec { heads, rope_dim, kv_rank, .. } = *spec;
        let rows = query.rows;
        let queries = [&query.data[..], rotated].concat();
        let of = LaneQueries { split, rows, heads, width: kv_rank, queries, sinks: None };
        self.attend_split(of, |queries, lane, sums| {
            let heads = queries.len().checked_div(rows * (kv_rank + rope_dim)).unwrap_or(0);
            let (latent, rope) = queries.split_at(rows * heads * kv_rank);
            let part = |q, width| QueryPart { q, row_stride: heads * width, head_stride: width, offset: 0, width };
            let parts = [part(latent, kv_rank), part(rope, rope_dim)];
            self.mix_latents(cache, spans, &MlaSpec { heads, ..*spec }, &parts, Some(lane), sums);
        })
    }

    pub(super) fn absorb(&self, kv_b: HostMatrix, spec: &MlaSpec, precision: Precision) -> Result<Expansion> {
        let MlaSpec { heads, nope_dim, v_dim, kv_rank, .. } = *spec;
        if (kv_b.rows, kv_b.cols) != (heads * (nope_dim + v_dim), kv_rank) {
            let what =
                format!("kv_b must be [{}, {kv_rank}], got [{}, {}]", heads * (nope_dim + v_dim), kv_b.rows, kv_b.cols);
            return Err(shape("mla_weight", what));
        }
        let data = Numbers::of(&kv_b)?;
        if !data.is_dense() {
            return Err(shape("mla_weight", "kv_b must be numbers, got codes".into()));
        }
        let (mut to_latent, mut to_value) = (Vec::new(), Vec::new());
        for head in 0..heads {
            let offset = head * (nope_dim + v_dim) * kv_rank;
            let keys = PackSource { data, offset, row_stride: 1, col_stride: kv_rank, rows: kv_rank, cols: nope_dim };
            let values = PackSource {
                data,
                offset: offset + nope_dim * kv_rank,
                row_stride: kv_rank,
                col_stride: 1,
                rows: v_dim,
                cols: kv_rank,
            };
            to_latent.push(self.pack(&keys, precision)?);
            to_value.push(self.pack(&values, precision)?);
        }
        Ok(Expansion { to_latent, to_value })
    }
}

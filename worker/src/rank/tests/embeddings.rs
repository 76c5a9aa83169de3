//! Embeddings, compared with transformers'.

use super::*;

#[derive(Deserialize)]
struct Embedded {
    ids: Vec<u32>,
    /// Of length 1.
    vector: Vec<f32>,
    bf16: Vec<f32>,
}

/// Largest difference of a number, and of the cosine from 1.
const F32_EMBEDDING: (f32, f64) = (2e-7, 1e-12);
const BF16_EMBEDDING: (f32, f64) = (6e-3, 1e-4);
/// Largest difference between numbers of ranks, which sum in another order, and those of one rank.
const RANKS_APART: f32 = 1e-6;

fn embedding_dir() -> PathBuf {
    fixture_dir().join("qwen3_embedding")
}

fn embedded() -> Vec<Embedded> {
    let text = fs::read_to_string(embedding_dir().join("embeddings.json")).expect("embeddings.json");
    serde_json::from_str(&text).expect("embeddings.json")
}

fn embeds(options: ModelOptions) -> RankGroup {
    load(&embedding_dir(), &ModelOptions { embeds: true, kv_blocks: Some(256), ..options })
}

/// Blocks for this many positions, from `first` on.
fn blocks(first: u32, positions: usize) -> Vec<u32> {
    (first..first + positions.div_ceil(8) as u32).collect()
}

fn state(group: &mut RankGroup, ids: &[u32]) -> Vec<f32> {
    run(group, vec![row(1, ids, 0, &blocks(0, ids.len()), After::Embed)]).remove(0).state
}

fn normalized(state: &[f32]) -> Vec<f32> {
    let length = state.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    state.iter().map(|&x| (f64::from(x) / length) as f32).collect()
}

/// The largest difference of a number, and 1 minus the cosine.
fn apart(a: &[f32], b: &[f32]) -> (f32, f64) {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let largest = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    (largest, 1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt())
}

#[test]
fn they_match_transformers() {
    for (dtype, bound) in [(Dtype::F32, F32_EMBEDDING), (Dtype::Bf16, BF16_EMBEDDING)] {
        let mut group = embeds(ModelOptions { dtype, ..f32_options() });
        for Embedded { ids, vector, bf16 } in embedded() {
            let want = if dtype == Dtype::F32 { vector } else { bf16 };
            let (largest, angle) = apart(&normalized(&state(&mut group, &ids)), &want);
            println!("{dtype:?}, {} tokens: numbers within {largest:.1e}, cosine within {angle:.1e}", ids.len());
            assert!(largest <= bound.0 && angle <= bound.1, "{dtype:?}, {} tokens: {largest} {angle}", ids.len());
        }
    }
}

#[test]
fn they_do_not_depend_on_chunks_or_batch() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut group = embeds(ModelOptions { dtype, ..f32_options() });
        let all = embedded();
        let alone: Vec<Vec<f32>> = all.iter().map(|embedded| state(&mut group, &embedded.ids)).collect();
        let mut first = 0;
        let mut rows = Vec::new();
        for (seq, Embedded { ids, .. }) in all.iter().enumerate() {
            let table = blocks(first, ids.len());
            first += table.len() as u32;
            rows.push(row(10 + seq as u32, ids, 0, &table, After::Embed));
        }
        let together: Vec<Vec<f32>> = run(&mut group, rows).into_iter().map(|result| result.state).collect();
        assert_eq!(together, alone, "{dtype:?}");

        let ids = &all.last().expect("texts").ids;
        let table = blocks(0, ids.len());
        let cut = ids.len() / 3;
        assert!(run(&mut group, vec![row(9, &ids[..cut], 0, &table, After::Nothing)]).is_empty());
        let rest = Row { kept_blocks: table.len() as u32, ..row(9, &ids[cut..], cut, &[], After::Embed) };
        assert_eq!(run(&mut group, vec![rest])[0].state, alone[all.len() - 1], "{dtype:?}");
    }
}

#[test]
fn ranks_agree() {
    let all = embedded();
    let mut one = embeds(f32_options());
    let alone: Vec<Vec<f32>> = all.iter().map(|embedded| state(&mut one, &embedded.ids)).collect();
    for tp in [2, 4] {
        let mut group = embeds(ModelOptions { tp, ..f32_options() });
        for (Embedded { ids, .. }, alone) in all.iter().zip(&alone) {
            let (largest, _) = apart(&normalized(&state(&mut group, ids)), &normalized(alone));
            assert!(largest <= RANKS_APART, "tp {tp}: {largest}");
        }
    }
}

/// A causal language model has a head, which is not loaded, and other names.
#[test]
fn a_model_with_a_head_embeds_without_it() {
    let fixture = fixture("qwen3");
    let with = load(&fixture.dir, &f32_options());
    let mut without = load(&fixture.dir, &ModelOptions { embeds: true, ..f32_options() });
    let bytes = |group: &RankGroup| group.weights().to_string();
    assert_ne!(bytes(&with), bytes(&without));
    assert_eq!(state(&mut without, &fixture.reference.tokens).len(), 64);
}

#[test]
fn a_checkpoint_without_head_cannot_generate() {
    let error = ModelLoader::open(&embedding_dir(), &f32_options()).map(drop).expect_err("it has no head");
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
}

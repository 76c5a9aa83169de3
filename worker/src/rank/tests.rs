//! Compares every fixture of tests/fixtures/models (tiny random checkpoints written by transformers, with transformers'
//! results) with this implementation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rein_kernels::Precision;
use rein_proto::internal::{Draw, Drawn, Row, RowResult, Sampling};
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::checkpoint::{PARAMS, config_of};
use crate::limits::READ_TIMEOUT;
use crate::score::{ScoreOutput, score, score_with};

mod apart;
mod broken;
#[cfg(feature = "cuda")]
mod cuda;
mod drafts;
mod embeddings;
mod layouts;
mod loras;
mod recurrent;
mod replaced;
mod steps;
mod wrapped;

const F32: f32 = 1e-4;
const BF16: f32 = 5e-2;
const QUANTIZED: f32 = 1e-3;
const RANKS: f32 = 1e-4;
/// What an FP8 cache changes on average.
const FP8_CACHE: f32 = 0.1;

#[derive(Deserialize)]
struct Reference {
    tokens: Vec<u32>,
    logprobs: Vec<Option<f32>>,
    top: Vec<Vec<Top>>,
    greedy_prompt: Vec<u32>,
    greedy: Vec<u32>,
    bf16: Bf16,
}

#[derive(Deserialize)]
struct Top {
    id: u32,
    logprob: f32,
}

#[derive(Deserialize)]
struct Bf16 {
    logprobs: Vec<Option<f32>>,
}

struct Fixture {
    name: String,
    dir: PathBuf,
    config: Value,
    reference: Reference,
}

fn fixture_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models")
}

fn fixture(name: &str) -> Fixture {
    let dir = fixture_dir().join(name);
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_else(|e| panic!("{name}/{file}: {e}"));
    Fixture {
        name: name.to_owned(),
        config: serde_json::from_str(&read("config.json")).expect("config.json"),
        reference: serde_json::from_str(&read("reference.json")).expect("reference.json"),
        dir,
    }
}

/// Of a model in Mistral's own layout, as `rein` makes it a model directory.
fn native_fixture(name: &str) -> Fixture {
    let native = fixture_dir().join("../native").join(name).canonicalize().expect("a fixture");
    let dir = std::env::temp_dir().join(format!("rein-native-{name}-{}", std::process::id()));
    let json = |file: &str| fs::read_to_string(native.join(file)).expect("a file");
    let params: Value = serde_json::from_str(&json(PARAMS)).expect("JSON");
    let config = config_of(params.as_object().expect("an object")).expect("a config");
    static MADE: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().expect("no test failed within");
    if !made.iter().any(|made| made == name) {
        made.push(name.to_owned());
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join("config.json"), Value::from(config.clone()).to_string()).expect("written");
        fs::copy(native.join("consolidated.safetensors"), dir.join("consolidated.safetensors")).expect("copied");
    }
    drop(made);
    let reference = serde_json::from_str(&json("reference.json")).expect("reference.json");
    Fixture { name: name.to_owned(), dir, config: config.into(), reference }
}

fn fixtures() -> Vec<Fixture> {
    let entries = fs::read_dir(fixture_dir()).expect("tests/fixtures/models");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("entry"))
        .filter(|entry| entry.path().join("reference.json").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(!names.is_empty(), "no fixtures in {}", fixture_dir().display());
    let native = ["mistral_large3", "mistral_large3_fp8"].map(native_fixture);
    names.iter().map(|name| fixture(name)).chain(native).collect()
}

impl Fixture {
    fn is_quantized(&self) -> bool {
        self.config.get("quantization_config").is_some()
    }

    fn heads(&self) -> usize {
        let config = self.config.get("text_config").unwrap_or(&self.config);
        let stated = config.get("num_attention_heads").or(config.get("n_head"));
        stated.and_then(Value::as_u64).expect("heads") as usize
    }

    fn score(&self, options: &ModelOptions) -> ScoreOutput {
        score(&self.dir, options, &self.reference.tokens).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

fn f32_options() -> ModelOptions {
    ModelOptions { dtype: Dtype::F32, threads: Some(2), kv_blocks: Some(16), block_size: 8, ..Default::default() }
}

fn load(dir: &Path, options: &ModelOptions) -> RankGroup {
    RankGroup::load(dir, options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

/// The largest difference between two lists of logprobs.
fn distance(a: &[Option<f32>], b: &[Option<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let both = a.iter().zip(b).map(|pair| match pair {
        (Some(a), Some(b)) => (a - b).abs(),
        (None, None) => 0.0,
        _ => f32::INFINITY,
    });
    both.fold(0.0, |worst, d| if d <= worst { worst } else { d })
}

fn sampling() -> Sampling {
    Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Default::default() }
}

fn greedy_draw(position: usize) -> Draw {
    Draw { sampling: Some(sampling()), position: position as u32, logprobs: -1, ..Default::default() }
}

/// The next step of a group.
fn step_of(group: &RankGroup, rows: Vec<Row>) -> Step {
    let StepPlacement { epoch, layout } = group.placed();
    let rows = rows.into_iter().map(|row| group.shape.forward_only(row)).collect();
    Step { epoch, layout, rows, ..Step::default() }
}

fn row(slot: u32, tokens: &[u32], start: usize, blocks: &[u32], after: After) -> Row {
    Row {
        slot,
        tokens: tokens.to_vec(),
        start: start as u32,
        kept_blocks: 0,
        blocks: blocks.to_vec(),
        after: after.into(),
        draws: if after == After::Draw { vec![greedy_draw(0)] } else { Vec::new() },
        score: -1,
        ..Row::default()
    }
}

fn run(group: &mut RankGroup, rows: Vec<Row>) -> Vec<RowResult> {
    let rows = rows.into_iter().map(|row| group.shape.forward_only(row)).collect();
    group.execute(Step { epoch: 1, id: 7, rows, ..Step::default() }).expect("step").rows
}

/// Greedy continuation, token by token.
fn generate(group: &mut RankGroup, prompt: &[u32], count: usize) -> Vec<u32> {
    let blocks: Vec<u32> = (0..(prompt.len() + count).div_ceil(group.shape.block_size) as u32).collect();
    let mut drawn = Vec::new();
    let mut next = prompt.to_vec();
    let mut start = 0;
    while drawn.len() < count {
        let result = run(group, vec![row(1, &next, start, &blocks, After::Draw)]);
        start += next.len();
        next = vec![result[0].token().expect("a token")];
        drawn.push(next[0]);
    }
    drawn
}

#[test]
fn every_fixture_matches_transformers() {
    for fixture in fixtures() {
        let Fixture { name, reference, .. } = &fixture;
        let tolerance = if fixture.is_quantized() { QUANTIZED } else { F32 };
        let mut group = load(&fixture.dir, &f32_options());
        let scored = score_with(&mut group, &reference.tokens).expect("score");
        let far = distance(&scored.logprobs, &reference.logprobs);
        let mut far_top: f32 = 0.0;
        assert_eq!(scored.top.len(), reference.top.len(), "{name}");
        for (ours, theirs) in scored.top.iter().zip(&reference.top) {
            assert_eq!((ours.len(), theirs.len()), (5, 5), "{name}");
            for (our, their) in ours.iter().zip(theirs) {
                assert_eq!(our.id, their.id, "{name}: order of alternatives");
                far_top = far_top.max((our.logprob - their.logprob).abs());
            }
        }
        let greedy = generate(&mut group, &reference.greedy_prompt, reference.greedy.len());
        println!("{name}: logprobs within {far:.1e}, alternatives within {far_top:.1e}");
        assert!(far <= tolerance, "{name}: logprobs differ by {far}");
        assert!(far_top <= tolerance, "{name}: alternatives differ by {far_top}");
        assert_eq!(greedy, reference.greedy, "{name}: greedy tokens");
    }
}

#[test]
fn every_architecture_has_a_fixture() {
    let all = fixtures();
    for name in model::architectures() {
        assert!(all.iter().any(|fixture| fixture.config["architectures"][0] == name), "{name}");
    }
}

#[test]
fn bf16_stays_close_to_transformers_in_bf16() {
    for fixture in fixtures() {
        let scored = fixture.score(&ModelOptions { dtype: Dtype::Bf16, ..f32_options() });
        let far = distance(&scored.logprobs, &fixture.reference.bf16.logprobs);
        println!("{}: bf16 within {far:.1e}", fixture.name);
        assert!(far <= BF16, "{}: bf16 logprobs differ by {far}", fixture.name);
    }
}

/// Codes of 4 significant bits for what attention reads; tiny models with random weights feel them more than trained
/// ones.
#[test]
fn an_fp8_cache_stays_close_and_ranks_agree() {
    let (mut refused, all) = (Vec::new(), fixtures());
    let most = all.len() / 2;
    for fixture in all {
        let options = ModelOptions { kv_dtype: KvDtype::Fp8, ..f32_options() };
        if let Err(error) = RankGroup::load(&fixture.dir, &options, &mut |_, _| ()) {
            assert!(error.to_string().contains("have biases and no norm"), "{error}");
            refused.push(fixture.name);
            continue;
        }
        let plain = fixture.score(&f32_options());
        let coded = fixture.score(&options);
        let (far, mean) = (distance(&plain.logprobs, &coded.logprobs), mean_distance(&plain.logprobs, &coded.logprobs));
        let many = fixture.score(&ModelOptions { tp: 2, ..options.clone() });
        let ranks = mean_distance(&coded.logprobs, &many.logprobs);
        println!("{}: within {far:.1e}, mean {mean:.1e}; tp 2 mean {ranks:.1e}", fixture.name);
        assert!(mean <= FP8_CACHE, "{}: an FP8 cache changes logprobs by {mean} on average", fixture.name);
        // A number between two codes may get the other one.
        assert!(ranks <= mean.max(RANKS), "{}: tp 2 differs by {ranks}", fixture.name);
    }
    assert!(
        refused.iter().any(|name| name == "qwen2") && refused.len() < most,
        "more than half of the fixtures: {refused:?}"
    );
    println!("refused: {refused:?}");
}

/// Where int4 weights stay as they are, as on a GPU.
#[test]
fn weights_of_four_bits_are_multiplied_as_they_are_stored() {
    for name in ["kimi_k2_int4", "llama_gptq_symmetric"] {
        let fixture = fixture(name);
        let mut group = RankGroup::load_rounding(&fixture.dir, &ModelOptions { dtype: Dtype::Bf16, ..f32_options() })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let scored = score_with(&mut group, &fixture.reference.tokens).expect("score");
        let far = distance(&scored.logprobs, &fixture.reference.bf16.logprobs);
        println!("{name}: within {far:.1e}");
        assert!(far <= BF16, "{name}: logprobs differ by {far}");
    }
}

#[test]
fn two_and_four_ranks_agree_with_one() {
    for fixture in fixtures() {
        let one = fixture.score(&f32_options());
        for tp in [2, 4] {
            assert!(fixture.heads().is_multiple_of(tp), "{}: choose heads that four ranks can share", fixture.name);
            let many = fixture.score(&ModelOptions { tp, ..f32_options() });
            let far = distance(&one.logprobs, &many.logprobs);
            println!("{}: tp {tp} within {far:.1e} of tp 1", fixture.name);
            assert!(far <= RANKS, "{}: tp {tp} differs by {far}", fixture.name);
        }
    }
}

/// In bf16, unlike in f32, blocks stay as they are stored: a rank has whole blocks of each row, or decodes its part.
#[test]
fn ranks_share_weights_as_they_are_stored() {
    // Of these, two ranks have whole groups of each weight, four have parts of groups.
    let others =
        ["llama_gptq_symmetric", "llama_awq", "llama_mxfp4", "llama_fp8_dynamic", "deepseek_v3_fp8", "kimi_k2_int4"];
    for name in ["gguf_llama", "gguf_qwen3_moe", "gguf_deepseek_v3"].into_iter().chain(others) {
        let fixture = fixture(name);
        for tp in [2, 4] {
            let scored = fixture.score(&ModelOptions { dtype: Dtype::Bf16, tp, ..f32_options() });
            let far = distance(&scored.logprobs, &fixture.reference.bf16.logprobs);
            println!("{name}: tp {tp} in bf16 within {far:.1e} of transformers");
            assert!(far <= BF16, "{name}: tp {tp} in bf16 differs by {far}");
        }
    }
}

/// A GPU's share of the weights would be larger otherwise.
#[test]
fn a_part_within_a_group_stays_int4() {
    use rein_kernels::{HostData, HostForm, HostMatrix, HostPool};
    const SHAPE: [usize; 2] = [64, 96];
    let numbers = |matrix: HostMatrix| match matrix.into_form(HostForm::F32).expect("numbers").data {
        HostData::F32(numbers) => numbers,
        other => panic!("{other:?}"),
    };
    for (name, zeros) in [("llama_gptq_symmetric", false), ("llama_awq", true)] {
        let open = open::open(&fixture(name).dir, &f32_options(), &Reads::new(READ_TIMEOUT)).expect(name);
        let part = |cols: std::ops::Range<usize>| {
            let module = "model.layers.0.mlp.down_proj";
            open.weights.matrix(module, SHAPE, 0..SHAPE[0], cols, |_| HostForm::Stored, &HostPool::plain()).expect(name)
        };
        let (whole, cut) = (numbers(part(0..96)), part(24..48));
        let group = match &cut.data {
            HostData::Int4 { group, .. } if !zeros => *group,
            HostData::Int4Zeros { group, .. } if zeros => *group,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(group, 8, "{name}");
        let want: Vec<f32> = whole.chunks_exact(96).flat_map(|row| &row[24..48]).copied().collect();
        assert_eq!(numbers(cut), want, "{name}");
    }
}

#[test]
fn both_spellings_of_a_config_are_equivalent() {
    let mut seen = 0;
    for fixture in fixtures() {
        let other = fixture.dir.join("config.tf5.json");
        if !other.exists() {
            continue;
        }
        seen += 1;
        let copy = Copied::of(&fixture);
        fs::copy(other, copy.path().join("config.json")).expect("copy");
        let again = score(copy.path(), &f32_options(), &fixture.reference.tokens);
        let again = again.unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
        assert_eq!(again, fixture.score(&f32_options()), "{}", fixture.name);
    }
    assert!(seen > 0, "no fixture has config.tf5.json");
}

/// Largest and mean difference of a logprob. Random weights of tiny widths are the hard case: errors do not average
/// out, and a row whose router chooses differently gets quite different logprobs.
const INT8: (f32, f32) = (0.25, 0.03);

#[test]
fn int8_stays_close() {
    for fixture in fixtures() {
        let one = fixture.score(&f32_options());
        let int8 = fixture.score(&ModelOptions { quantize: Quantize::Int8, ..f32_options() });
        let far = distance(&one.logprobs, &int8.logprobs);
        let mean = mean_distance(&one.logprobs, &int8.logprobs);
        println!("{}: int8 within {far:.1e}, {mean:.1e} on average", fixture.name);
        assert!(far <= INT8.0 && mean <= INT8.1, "{}: int8 differs by {far}, on average {mean}", fixture.name);
        assert!(mean > 0.0, "{}: int8 is not in use", fixture.name);
    }
}

fn mean_distance(a: &[Option<f32>], b: &[Option<f32>]) -> f32 {
    let pairs = a.iter().zip(b).filter_map(|(a, b)| Some((a.as_ref()? - b.as_ref()?).abs()));
    pairs.sum::<f32>() / (a.len() - 1) as f32
}

#[test]
fn auto_dtype_is_that_of_the_checkpoint() {
    let of = |name: &str| {
        open::open(&fixture(name).dir, &ModelOptions::default(), &Reads::new(READ_TIMEOUT)).expect(name).precisions.base
    };
    assert_eq!(of("llama3"), Precision::Bf16);
    assert_eq!(of("llama_bias"), Precision::F32, "f16 becomes f32");
    assert_eq!(of("llama_awkward"), Precision::F32);
    assert_eq!(of("kimi_k2_int4"), Precision::Bf16);
    assert_eq!(of("deepseek_v3_fp8"), Precision::Bf16);
    assert_eq!(of("gguf_llama"), Precision::Bf16, "numbers in blocks");
}

#[test]
fn progress_ends_at_the_total() {
    let mut last = (0, 0);
    let options = ModelOptions { tp: 2, ..f32_options() };
    RankGroup::load(&fixture("deepseek_v3").dir, &options, &mut |done, total| {
        assert!(done >= last.0 && done <= total);
        last = (done, total);
    })
    .expect("loads");
    assert!(last.0 > 0 && last.0 == last.1, "{last:?}");
}

/// A modifiable copy of a fixture's directory.
struct Copied(PathBuf);

impl Copied {
    fn of(fixture: &Fixture) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("rein-{}-{n}-{}", fixture.name, std::process::id()));
        fs::create_dir_all(&dir).expect("directory");
        for entry in fs::read_dir(&fixture.dir).expect("fixture") {
            let path = entry.expect("entry").path();
            let name = path.file_name().expect("name").to_string_lossy().into_owned();
            if name == "config.json" || name.starts_with("model") {
                fs::copy(&path, dir.join(&name)).expect("copy");
            }
        }
        Self(dir)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

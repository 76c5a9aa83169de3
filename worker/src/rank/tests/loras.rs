//! LoRA adapters of tests/fixtures/loras, which PEFT wrote, with transformers' results.

use rein_proto::internal::LoraPart;

use super::broken::{Tensors, assert_names};
use super::*;

#[derive(Deserialize)]
pub(super) struct LoraReference {
    pub model: String,
    pub tokens: Vec<u32>,
    pub logprobs: Vec<Option<f32>>,
    of_model: Vec<Option<f32>>,
}

pub(super) struct LoraFixture {
    dir: PathBuf,
    pub reference: LoraReference,
}

fn loras_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/loras")
}

pub(super) fn lora(name: &str) -> LoraFixture {
    let dir = loras_dir().join(name);
    let text = fs::read_to_string(dir.join("reference.json")).unwrap_or_else(|e| panic!("{name}: {e}"));
    LoraFixture { reference: serde_json::from_str(&text).expect("reference.json"), dir }
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(loras_dir()).expect("tests/fixtures/loras");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn options() -> ModelOptions {
    ModelOptions { loras: LIMITS, ..f32_options() }
}

pub(super) const LIMITS: LoraLimits = LoraLimits { slots: 2, room: None, rank: 64 };

impl LoraFixture {
    fn parts(&self, group: &RankGroup, slot: u32) -> Vec<LoraPart> {
        let read = group.lora_source().expect("a source").read(&self.dir).unwrap_or_else(|e| panic!("{e}"));
        read.modules.into_iter().map(|module| module.part(slot)).collect()
    }

    pub fn load(&self, group: &mut RankGroup, slot: u32) {
        let loras = self.parts(group, slot);
        group.execute(Step { epoch: 1, loras, ..Step::default() }).expect("step");
    }
}

pub(super) fn scoring(
    slot: u32,
    tokens: &[u32],
    range: std::ops::Range<usize>,
    blocks: &[u32],
    lora: Option<u32>,
) -> Row {
    let next = tokens.get(range.end).copied();
    Row { score: 0, next, lora, ..row(slot, &tokens[range.clone()], range.start, blocks, After::Nothing) }
}

pub(super) fn scores(result: &[RowResult], slot: u32) -> Vec<Option<f32>> {
    let scores = result.iter().filter(|row| row.slot == slot).flat_map(|row| &row.scores);
    std::iter::once(None).chain(scores.map(|score| score.logprob)).collect()
}

#[test]
fn every_lora_matches_peft_beside_rows_without_one() {
    for name in names() {
        let fixture = lora(&name);
        let LoraReference { model, tokens, logprobs, of_model } = &fixture.reference;
        let model = super::fixture(model);
        for tp in [1, 2, 4].into_iter().filter(|tp| model.name != "qwen3_next" || *tp < 4) {
            let mut group = load(&model.dir, &ModelOptions { tp, ..options() });
            fixture.load(&mut group, 1);
            let blocks: Vec<Vec<u32>> = vec![vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8]];
            let loras = [None, Some(1), Some(0)];
            let rows = (1..).zip(blocks).zip(loras);
            let rows = rows.map(|((slot, blocks), lora)| scoring(slot, tokens, 0..tokens.len(), &blocks, lora));
            let result = run(&mut group, rows.collect());
            let apart = distance(&scores(&result, 2), logprobs);
            println!("{name}, tp {tp}: {apart:e}");
            assert!(apart <= F32, "{name}, tp {tp}: {apart:e} from PEFT");
            assert!(distance(logprobs, of_model) > 0.1, "{name} changes little");
            // Without an adapter, and with a slot that is empty.
            assert!(distance(&scores(&result, 1), of_model) <= F32, "{name}, tp {tp}: the model alone");
            assert_eq!(scores(&result, 1), scores(&result, 3), "{name}, tp {tp}: an empty slot");
        }
    }
}

#[test]
fn adapters_of_one_batch_are_apart_and_bits_do_not_depend_on_it() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let fixtures = ["qwen3_all", "qwen3_patterns"].map(lora);
        let mut group = load(&super::fixture("qwen3").dir, &ModelOptions { dtype, ..options() });
        fixtures.iter().zip(0..).for_each(|(fixture, slot)| fixture.load(&mut group, slot));
        let tokens = &fixtures[0].reference.tokens;
        let end = tokens.len();
        let alone = [None, Some(0), Some(1)]
            .map(|lora| scores(&run(&mut group, vec![scoring(1, tokens, 0..end, &[0, 1, 2], lora)]), 1));
        if dtype == Dtype::F32 {
            for (found, fixture) in alone[1..].iter().zip(&fixtures) {
                assert!(distance(found, &fixture.reference.logprobs) <= F32);
            }
        }
        let mut together = [vec![None], vec![None], vec![None]];
        for range in [0..3, 3..4, 4..11, 11..end] {
            let rows = [None, Some(0), Some(1)].into_iter().zip(0..).map(|(lora, slot)| {
                let first = 3 * slot;
                scoring(slot, tokens, range.clone(), &[first, first + 1, first + 2], lora)
            });
            let result = run(&mut group, rows.collect());
            for (slot, all) in (0..).zip(&mut together) {
                all.extend(scores(&result, slot).into_iter().skip(1));
            }
        }
        assert_eq!(together, alone, "{dtype:?}");
    }
}

#[test]
fn an_emptied_slot_changes_nothing() {
    for name in ["qwen3_all", "qwen3_moe_modules"] {
        let fixture = lora(name);
        let tokens = &fixture.reference.tokens;
        let mut group = load(&super::fixture(&fixture.reference.model).dir, &options());
        let score = |group: &mut RankGroup, lora| {
            scores(&run(group, vec![scoring(1, tokens, 0..tokens.len(), &[0, 1, 2], lora)]), 1)
        };
        let before = score(&mut group, None);
        fixture.load(&mut group, 0);
        assert_ne!(score(&mut group, Some(0)), before, "{name}");
        let empty = LoraPart { slot: 0, ..LoraPart::default() };
        group.execute(Step { epoch: 1, loras: vec![empty], ..Step::default() }).expect("step");
        assert_eq!(score(&mut group, Some(0)), before, "{name}");
    }
}

#[test]
fn parts_that_do_not_fit_end_no_process() {
    let mut group = load(&super::fixture("qwen3").dir, &options());
    let row = Row { lora: Some(2), ..row(1, &[5], 0, &[0], After::Draw) };
    let step = Step { epoch: 1, rows: vec![row], ..Step::default() };
    assert!(matches!(group.execute(step), Err(ExecutorError::Step(what)) if what.contains("no LoRA slot 2")));
    let part = LoraPart { slot: 0, module: "model.layers.9".into(), ..LoraPart::default() };
    let step = Step { epoch: 1, loras: vec![part], ..Step::default() };
    assert!(matches!(group.execute(step), Err(ExecutorError::Lost(what)) if what.contains("model.layers.9")));
}

#[test]
fn shapes_that_belong_to_no_number_of_experts_are_refused() {
    let fixture = lora("qwen3_moe_experts");
    let model = super::fixture(&fixture.reference.model);
    let group = super::load(&model.dir, &options());
    let part = "base_model.model.model.layers.1.mlp.experts.base_layer.lora_B.weight";
    let refused = |shape: fn(u64, u64) -> [u64; 2]| {
        let copy = Copied::of(&model);
        let file = |name| (fixture.dir.join(name), copy.path().join(name));
        let (from, to) = file("adapter_config.json");
        fs::copy(from, to).expect("copied");
        let (from, to) = file("adapter_model.safetensors");
        let mut tensors = Tensors::read(&from);
        let entry = &mut tensors.header[part];
        let of = |i: usize| entry["shape"][i].as_u64().expect("a number");
        entry["shape"] = json!(shape(of(0), of(1)));
        tensors.write(&to);
        let read = group.lora_source().expect("a source").read(copy.path());
        read.map(|lora| lora.rank).expect_err("refused").to_string()
    };
    assert_names(&refused(|outs, cols| [outs * 2, cols / 2]), &["experts", "rows of lora_A", "columns of lora_B"]);
    assert_names(&refused(|outs, cols| [outs / 2, cols * 2]), &["experts", "rows of lora_A", "columns of lora_B"]);
}

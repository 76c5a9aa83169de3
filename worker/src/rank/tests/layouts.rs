//! Expert layouts that change while a group computes: results do not change.

use std::sync::atomic::AtomicBool;

use rein_control_plane::Placement;

use super::*;

const RANKS: usize = 2;

pub struct Running {
    pub group: RankGroup,
    pub layouts: Arc<Layouts>,
}

pub fn start(
    model: &ModelLoader,
    placement: &Arc<Placement>,
    resident_weights: Vec<ResidentWeights>,
    return_weights: Option<Sender<ResidentWeights>>,
) -> Running {
    let links = collective::threads::group(RANKS).into_iter().map(|link| Box::new(link) as Box<dyn Collective>);
    let seated =
        model.seat(placement, links.collect(), resident_weights, return_weights, &mut |_, _| ()).expect("seated");
    let layouts = seated.layouts().clone();
    Running { group: seated.executor().expect("it leads"), layouts }
}

/// Token and logprobs of some steps of two sequences; `between` is called before each step.
pub fn run(running: &mut Running, mut between: impl FnMut(usize, &Layouts)) -> Vec<RowResult> {
    let mut results = Vec::new();
    for i in 0..8 {
        between(i, &running.layouts);
        let draw = |slot: u32, token: u32, block: u32| {
            let mut row =
                row(slot, &[token + i as u32, 6, 7], 3 * i, &[3 * block, 3 * block + 1, 3 * block + 2], After::Draw);
            row.draws.iter_mut().for_each(|draw| draw.logprobs = 5);
            row
        };
        let step = step_of(&running.group, vec![draw(1, 5, 0), draw(2, 9, 1)]);
        results.extend(running.group.execute(step).expect("executes").rows);
    }
    results
}

/// Layout n: experts rotated by n ranks, and every third expert on all ranks.
pub fn turned(model: &ModelLoader, n: u64) -> Arc<Placement> {
    let mut placement = place(&model.shape(), RANKS, 1).expect("a placement");
    placement.layout = n;
    for (layer, &experts) in model.shape().experts.iter().enumerate() {
        for rank in &mut placement.ranks {
            let here = |&e: &u32| {
                (u64::from(e) + n).is_multiple_of(3) || (u64::from(e) + n) % RANKS as u64 == rank.rank as u64
            };
            rank.experts[layer] = (0..experts as u32).filter(here).collect();
        }
    }
    Arc::new(placement)
}

#[test]
fn outputs_do_not_change_while_experts_move() {
    for name in ["deepseek_v3", "qwen3_moe", "mixtral"] {
        let fixture = fixture(name);
        let model = ModelLoader::open(&fixture.dir, &ModelOptions { tp: RANKS, ..f32_options() }).expect("opens");
        let first = Arc::new(place(&model.shape(), RANKS, 1).expect("a placement"));
        let mut undisturbed = start(&model, &first, Vec::new(), None);
        let want = run(&mut undisturbed, |_, _| ());
        let counted = undisturbed.layouts.counts().expect("the leader counts");

        let (return_weights, returned) = bounded(RANKS);
        let mut moving = start(&model, &first, Vec::new(), Some(return_weights));
        let got = run(&mut moving, |i, layouts| {
            let go_on = AtomicBool::new(false);
            match i {
                // Loaded one step before it is taken up; then two before any step.
                1 => assert!(layouts.load(&turned(&model, 1), &go_on).expect("loads")),
                2 => layouts.switch(1),
                4 => {
                    assert!(layouts.load(&turned(&model, 2), &go_on).expect("loads"));
                    assert!(layouts.load(&turned(&model, 3), &go_on).expect("loads"));
                    assert!(!layouts.load(&turned(&model, 4), &go_on).expect("is not tried"), "a full inbox");
                    layouts.switch(3);
                }
                _ => assert_eq!(layouts.used(), [0, 0, 0, 1, 1, 3, 3, 3][i]),
            }
        });
        assert_eq!(got, want, "{name}");
        assert_eq!(moving.layouts.counts(), Some(counted), "{name}");

        // The returned weights serve another layout.
        drop(moving);
        let back: Vec<ResidentWeights> = returned.iter().take(RANKS).collect();
        let mut again = start(&model, &turned(&model, 5), back, None);
        assert_eq!(run(&mut again, |_, _| ()), want, "{name}");
    }
}

#[test]
fn a_step_with_a_layout_that_is_not_loaded_ends_the_group() {
    let model =
        ModelLoader::open(&fixture("deepseek_v3").dir, &ModelOptions { tp: RANKS, ..f32_options() }).expect("opens");
    let mut running = start(&model, &Arc::new(place(&model.shape(), RANKS, 1).expect("a placement")), Vec::new(), None);
    running.layouts.switch(7);
    let step = step_of(&running.group, vec![row(1, &[5], 0, &[0], After::Draw)]);
    let error = running.group.execute(step).expect_err("there is no layout 7");
    assert!(matches!(&error, ExecutorError::Lost(why) if why.contains("layout 7")), "{error}");
    let stopped = AtomicBool::new(true);
    assert!(!running.layouts.load(&turned(&model, 1), &stopped).expect("stops"));
}

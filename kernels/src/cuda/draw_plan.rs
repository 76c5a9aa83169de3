//! What a step draws, as draw.cu takes it: tasks and lists as 32-bit words, and where their results are. It does not
//! know devices.

use crate::backend::{AWAITED_TOKEN, KeptHistory, LogitsOf, SampledToken, Stash, StepInputs, StepOutputs};
use crate::sample::{Logprob, SampleSpec};

/// No slot, no token, no logprobs.
const NONE: u32 = u32::MAX;
/// Of a `DrawTask`.
pub const TASK_WORDS: usize = 30;
/// The word of a task that says where its mask begins.
const MASK_AT: usize = TASK_WORDS - 2;
/// Rows whose logits are in memory at once for scoring: a long prompt must not need prompt * vocabulary floats.
const SCORE_ROWS: usize = 32;

/// What one launch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawPass {
    /// The number of rows whose logits it takes: the next ones of those that the step wants.
    pub rows: usize,
    /// The word at which the block of draw.cu begins.
    pub block: usize,
    pub tasks: usize,
    pub stashes: usize,
}

/// What a step draws.
#[derive(Debug, Default)]
pub struct DrawPlan<'a> {
    words: Vec<u32>,
    /// They follow the words, and are copied once: most of what a step brings.
    masks: Vec<&'a [u8]>,
    /// For each mask, the word that says where it begins, and the block to which that is relative.
    mask_places: Vec<(usize, usize)>,
    /// Scores, a few at a time; then draws and stashes.
    pub passes: Vec<DrawPass>,
    /// Stashes are to slots below this.
    pub slots: usize,
    results: DrawnWords,
    /// Words of lists that are the last token of a slot.
    awaits: Vec<[u32; 2]>,
    pub awaited: AwaitedWords,
}

/// Where pairs of a place and a slot begin, whose tokens the device fills in.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedWords {
    pub at: usize,
    /// The first pairs are of ids, the others of words of the plan.
    pub ids: usize,
    pub words: usize,
}

/// The words of a step's results.
#[derive(Debug, Clone, Default)]
pub struct DrawnWords {
    count: usize,
    /// The number of alternatives of each score, and of each draw (None: no logprobs). Results are in this order.
    scores: Vec<usize>,
    draws: Vec<Option<usize>>,
}

/// A draw, or the score of a given token.
struct Task<'a> {
    /// None: its lists travel whole.
    history: Option<KeptHistory>,
    from: LogitsOf,
    /// Where the token is kept for the next step.
    keeps: Option<u32>,
    token: u32,
    top: Option<usize>,
    sample: SampleSpec<'a>,
}

/// Words of the result of a draw: the token, and if they are wanted its logprob and those of alternatives.
pub fn result_words(top: Option<usize>) -> usize {
    top.map_or(1, |top| 4 + 2 * top)
}

impl<'a> DrawPlan<'a> {
    /// `keeps`: the device has room for the histories of slots.
    pub fn new(rows: &StepInputs<'a>, keeps: bool) -> DrawPlan<'a> {
        let mut plan = DrawPlan {
            results: DrawnWords {
                count: 0,
                scores: rows.scores.iter().map(|score| score.top).collect(),
                draws: rows.draws.iter().map(|draw| draw.logprobs).collect(),
            },
            slots: rows.stashes.iter().map(|stash| stash.slot as usize + 1).max().unwrap_or(0),
            ..DrawPlan::default()
        };
        for scores in rows.scores.chunks(SCORE_ROWS) {
            let tasks = scores.iter().map(|score| Task {
                history: None,
                from: LogitsOf::Row(score.row),
                keeps: None,
                token: score.token,
                top: Some(score.top),
                sample: SampleSpec::default(),
            });
            plan.pass(&tasks.collect::<Vec<_>>(), &[]);
        }
        let tasks = rows.draws.iter().map(|draw| Task {
            history: draw.history.filter(|_| keeps),
            from: draw.from,
            keeps: draw.slot,
            token: NONE,
            top: draw.logprobs,
            sample: draw.sample,
        });
        if !(rows.draws.is_empty() && rows.stashes.is_empty()) {
            plan.pass(&tasks.collect::<Vec<_>>(), &rows.stashes);
        }
        plan.awaited = AwaitedWords { at: plan.words.len(), ids: rows.awaits.len(), words: plan.awaits.len() };
        plan.words.extend(rows.awaits.iter().flat_map(|awaited| [awaited.row as u32, awaited.slot]));
        plan.words.extend(plan.awaits.as_flattened());
        let mut at = plan.words.len();
        for (mask, (word, block)) in plan.masks.iter().zip(&plan.mask_places) {
            plan.words[*word] = (at - block) as u32;
            at += mask.len().div_ceil(4);
        }
        plan
    }

    /// Where the results are in what the kernels write.
    pub fn results(&self) -> &DrawnWords {
        &self.results
    }

    /// Words of all results.
    pub fn out_words(&self) -> usize {
        self.results.count
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.words.len() + self.masks.iter().map(|mask| mask.len().div_ceil(4)).sum::<usize>()
    }

    /// Writes all of them.
    pub fn write(&self, to: &mut [u32]) {
        let (words, mut rest) = to.split_at_mut(self.words.len());
        words.copy_from_slice(&self.words);
        for mask in &self.masks {
            let (own, after) = rest.split_at_mut(mask.len().div_ceil(4));
            let (whole, last) = mask.as_chunks::<4>();
            own.iter_mut().zip(whole).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
            if let (Some(word), false) = (own.last_mut(), last.is_empty()) {
                *word = last.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
            }
            rest = after;
        }
    }

    fn pass(&mut self, tasks: &[Task<'a>], stashes: &[Stash]) {
        let block = self.words.len();
        let of_tasks = tasks.iter().filter(|task| matches!(task.from, LogitsOf::Row(_))).count();
        let rows = of_tasks + stashes.len();
        let pass = DrawPass { rows, block, tasks: tasks.len(), stashes: stashes.len() };
        self.passes.push(pass);
        let first_task = block + 2;
        let first_stash = first_task + tasks.len() * TASK_WORDS;
        self.words.extend([tasks.len() as u32, stashes.len() as u32]);
        self.words.resize(first_stash + stashes.len() * 2, 0);
        // The logits have the rows of the tasks, then those of the stashes.
        let mut next = 0..;
        for (i, task) in tasks.iter().enumerate() {
            let (row, slot) = match task.from {
                LogitsOf::Row(_) => (next.next().unwrap_or(0), NONE),
                LogitsOf::Slot(slot) => (0, slot),
            };
            let words = self.task(block, task, row, slot);
            let first = first_task + i * TASK_WORDS;
            self.words[first..][..TASK_WORDS].copy_from_slice(&words);
            // A mask of no bytes allows no token, so it has a place too: 0 says that there is no mask.
            if let Some(mask) = task.sample.mask {
                self.masks.push(mask);
                self.mask_places.push((first + MASK_AT, block));
            }
        }
        for (i, (row, stash)) in next.zip(stashes).enumerate() {
            self.words[first_stash + 2 * i..][..2].copy_from_slice(&[row, stash.slot]);
        }
    }

    /// A `DrawTask`, whose lists are appended.
    fn task(&mut self, block: usize, task: &Task<'a>, row: u32, slot: u32) -> [u32; TASK_WORDS] {
        let s = &task.sample;
        let penalized = s.repetition_penalty != 1.0 || s.presence_penalty != 0.0 || s.frequency_penalty != 0.0;
        // Lists that no penalty reads do not travel.
        let prompt = if s.repetition_penalty != 1.0 { s.prompt } else { &[] };
        let generated = if penalized { s.generated } else { &[] };
        let (mut history, mut fresh) = ([NONE, 0], [0, 0]);
        let ([prompt_at, prompt_length], [generated_at, generated_length]) = match task.history {
            Some(KeptHistory { slot, kept }) => {
                let all = s.prompt.iter().chain(s.generated).copied();
                (history, fresh) = ([slot, kept as u32], self.list(block, all.skip(kept)));
                // Places within the history.
                ([0, prompt.len() as u32], [s.prompt.len() as u32, generated.len() as u32])
            }
            None => (self.list(block, prompt.iter().copied()), self.list(block, generated.iter().copied())),
        };
        if let (Some(&AWAITED_TOKEN), Some(slot)) = (generated.last(), task.keeps) {
            self.awaits.push([self.words.len() as u32 - 1, slot]);
        }
        let bias = s.logit_bias.iter().flat_map(|&(id, bias)| [id, bias.to_bits()]);
        let [bias_at, bias_length] = self.list(block, bias);
        let [banned_at, banned_length] = self.list(block, s.banned.iter().copied());
        let mask_length = s.mask.map_or(0, |mask| mask.len() as u32);
        let out = self.results.count as u32;
        self.results.count += result_words(task.top);
        [
            row,
            slot,
            task.token,
            task.top.map_or(NONE, |top| top as u32),
            out,
            s.seed as u32,
            (s.seed >> 32) as u32,
            s.position,
            u32::try_from(s.top_k).unwrap_or(NONE),
            s.temperature.to_bits(),
            s.top_p.to_bits(),
            s.min_p.to_bits(),
            s.repetition_penalty.to_bits(),
            s.presence_penalty.to_bits(),
            s.frequency_penalty.to_bits(),
            prompt_at,
            prompt_length,
            generated_at,
            generated_length,
            bias_at,
            bias_length,
            banned_at,
            banned_length,
            history[0],
            history[1],
            fresh[0],
            fresh[1],
            task.keeps.unwrap_or(NONE),
            // Where the mask begins: see `new`.
            0,
            mask_length,
        ]
    }

    /// Appends words; where they begin in the block, and how many they are.
    fn list(&mut self, block: usize, words: impl Iterator<Item = u32>) -> [u32; 2] {
        let at = self.words.len();
        self.words.extend(words);
        [(at - block) as u32, (self.words.len() - at) as u32]
    }
}

impl DrawnWords {
    /// The results from the words that the kernels wrote.
    pub fn read(&self, mut out: impl Iterator<Item = u32>) -> StepOutputs {
        let scores = self.scores.iter().map(|&top| {
            out.next();
            logprob(&mut out, top)
        });
        let scores = scores.collect();
        let tokens = self.draws.iter().map(|&top| {
            let id = out.next().unwrap_or(NONE);
            let logprob = top.map(|top| logprob(&mut out, top));
            (id != NONE).then_some(SampledToken { id, logprob })
        });
        StepOutputs { tokens: tokens.collect(), scores, ..StepOutputs::default() }
    }
}

/// A result after its token: it has room for `top` alternatives.
fn logprob(out: &mut impl Iterator<Item = u32>, top: usize) -> Logprob {
    let mut word = || out.next().unwrap_or(0);
    let (logprob, rank, found) = (f32::from_bits(word()), word(), word() as usize);
    let mut all: Vec<(u32, f32)> = (0..top).map(|_| (word(), f32::from_bits(word()))).collect();
    all.truncate(found);
    Logprob { logprob, rank, top: all }
}

#[cfg(test)]
mod tests;

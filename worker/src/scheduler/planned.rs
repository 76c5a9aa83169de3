//! A step, from its plan to its commit.

use rein_proto::internal::{After, Row, StateSave};

use crate::blocks::PlaceId;
use crate::seq::{Seq, SeqId};

/// A step that was made and not committed.
#[derive(Debug, Default)]
pub struct PlannedStep {
    pub rows: Vec<Planned>,
    pub loads: Vec<PlannedLoad>,
    /// Places of the host tier that it fills, with their contents.
    pub saves: Vec<(PlaceId, u64)>,
}

/// The next blocks of a sequence come from places of the host tier.
#[derive(Debug)]
pub struct PlannedLoad {
    pub seq: SeqId,
    /// As in [`Planned`].
    pub rows_of: u64,
    pub places: Vec<PlaceId>,
}

#[derive(Debug, Clone)]
pub struct Planned {
    pub seq: SeqId,
    /// Known once the step is made.
    pub slot: u32,
    /// The position of its first token.
    pub start: usize,
    /// As in [`UnderWay`](crate::seq::UnderWay) when it was planned.
    pub rows_of: u64,
    pub draws_of: u64,
    /// Number of tokens to compute. 0: draw from the stash.
    pub count: usize,
    /// What may follow them, computed too: a token is drawn behind each.
    pub drafts: Vec<u32>,
    pub after: After,
    pub scored: bool,
    /// Known once the step is made: the cell with its recurrent state, where that goes, and how many of the saves, the
    /// first, are checkpoints.
    pub state: Option<u32>,
    pub saves: Vec<StateSave>,
    pub checkpoints: usize,
}

impl Planned {
    /// The next `count` tokens of a sequence.
    pub fn new(id: SeqId, seq: &Seq, count: usize) -> Self {
        let start = seq.computed_ahead();
        let after = match start + count == seq.len_ahead() {
            false => After::Nothing,
            true if seq.embeds => After::Embed,
            true if seq.may_draw() => After::Draw,
            true => After::Stash,
        };
        Self {
            seq: id,
            slot: 0,
            start,
            rows_of: seq.ahead.rows_of,
            draws_of: seq.ahead.draws_of,
            count,
            drafts: Vec::new(),
            after,
            scored: seq.scoring() && count > 0 && start < seq.prompt_len,
            state: None,
            saves: Vec::new(),
            checkpoints: 0,
        }
    }

    /// The position behind all that it computes.
    pub fn end(&self) -> usize {
        self.start + self.count + self.drafts.len()
    }

    /// Number of tokens that it draws.
    pub fn draws(&self) -> usize {
        if self.after == After::Draw { 1 + self.drafts.len() } else { 0 }
    }

    /// Positions and cells of its checkpoints.
    pub fn checkpoints(&self) -> impl Iterator<Item = (usize, u32)> {
        self.saves[..self.checkpoints].iter().map(|save| (self.start + save.tokens as usize, save.cell))
    }

    /// Whether the executor returns a result for it.
    pub fn answers(&self) -> bool {
        matches!(self.after, After::Draw | After::Embed) || self.scored
    }

    /// What the executor gets.
    pub fn row(&self, seq: &mut Seq, block_size: usize) -> Row {
        let end = self.start + self.count;
        let (kept_blocks, blocks) = match self.count {
            0 => (0, Vec::new()),
            _ => seq.tell_table(self.end().div_ceil(block_size)),
        };
        let mut tokens = seq.tokens.get(self.start..end.min(seq.tokens.len())).unwrap_or_default().to_vec();
        // In place of the one that is not known yet.
        tokens.resize(self.count, 0);
        tokens.extend_from_slice(&self.drafts);
        Row {
            slot: self.slot,
            tokens,
            awaits_token: end > seq.tokens.len(),
            start: self.start as u32,
            kept_blocks: kept_blocks as u32,
            blocks,
            after: self.after.into(),
            draws: if self.after == After::Draw { seq.draws(self.drafts.len()) } else { Vec::new() },
            score: if self.scored { seq.prompt_logprobs } else { -1 },
            next: (self.scored && end < seq.prompt_len).then(|| seq.tokens[end]),
            state: self.state,
            saves: self.saves.clone(),
            lora: seq.lora,
        }
    }
}

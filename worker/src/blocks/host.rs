//! The places of the host tier: what leaves the prefix cache is kept there until it is the least recently used, and a
//! prefix found there is copied back. The bytes are with the ranks, which a step tells what to copy.

use std::collections::HashMap;
use std::sync::Arc;

use rein_proto::block_hash;
use rein_proto::internal::{BlockLoad, BlockSave};

use super::unused::{Linked, Links, UnusedBlocks};
use super::{BlockId, BlockPool, BlockTier, Content, Key, Parent};
use crate::limits;

pub type PlaceId = u32;

/// What a place holds, as the ranks have kept it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBlock {
    pub place: PlaceId,
    pub content: u64,
    /// None: it is a sequence's first, under this salt.
    pub parent: Option<u64>,
    pub salt: String,
    pub tokens: Vec<u32>,
}

/// The host tier that an executor has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostShape {
    pub places: usize,
    /// It outlives this process, so blocks go there as soon as they are full, and saves say what they hold.
    pub outlives: bool,
    /// What the places hold from before.
    pub kept: Arc<Vec<KeptBlock>>,
    /// The first number that no content has on any rank.
    pub next_content: u64,
}

#[derive(Debug, Default)]
struct Place {
    content: Option<Content>,
    /// Loads that were planned and are not done.
    loads: u32,
    /// Its neighbours while it has a content and no loads.
    links: Links,
}

impl Linked for Place {
    fn links(&self) -> Links {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Debug)]
pub(super) struct HostPlaces {
    places: Vec<Place>,
    /// By class: a place holds blocks of the rank that has it, where the cache is split over ranks.
    free: Vec<Vec<PlaceId>>,
    index: HashMap<Arc<Key>, PlaceId>,
    /// Of each class, the least recently used first.
    unused: Vec<UnusedBlocks>,
    outlives: bool,
    /// For the next step.
    saves: Vec<BlockSave>,
    loads: Vec<BlockLoad>,
}

impl HostPlaces {
    /// None: there are none.
    pub fn new(shape: &HostShape, block_size: usize, classes: usize) -> Option<(Self, u64)> {
        let count = u32::try_from(shape.places).unwrap_or(u32::MAX);
        let mut host = HostPlaces {
            places: (0..count).map(|_| Place::default()).collect(),
            free: Vec::new(),
            index: HashMap::new(),
            unused: (0..classes).map(|_| UnusedBlocks::default()).collect(),
            outlives: shape.outlives,
            saves: Vec::new(),
            loads: Vec::new(),
        };
        host.restore(&shape.kept, block_size);
        let empty = |place: &PlaceId| host.places[*place as usize].content.is_none();
        let of_class = |class: usize| (0..count).rev().filter(move |&place| place as usize % classes == class);
        host.free = (0..classes).map(|class| of_class(class).filter(empty).collect()).collect();
        (count > 0).then_some((host, shape.next_content))
    }

    /// Takes over what is kept, as far as all that came before it is there too.
    fn restore(&mut self, kept: &[KeptBlock], block_size: usize) {
        let mut after: HashMap<Option<u64>, Vec<&KeptBlock>> = HashMap::new();
        let fits = |kept: &&KeptBlock| kept.tokens.len() == block_size && (kept.place as usize) < self.places.len();
        kept.iter().filter(fits).for_each(|kept| after.entry(kept.parent).or_default().push(kept));
        // Parents first; and so a parent is used later than what follows it, once the order is reversed.
        let mut found: Vec<(&KeptBlock, u64)> = Vec::new();
        let roots = after.remove(&None).unwrap_or_default();
        found.extend(roots.into_iter().map(|kept| (kept, block_hash::root(&kept.salt))));
        let mut at = 0;
        while let Some(&(kept, parent)) = found.get(at) {
            at += 1;
            let hash = block_hash::after(parent, &kept.tokens);
            found[at - 1].1 = hash;
            let children = after.remove(&Some(kept.content)).unwrap_or_default();
            found.extend(children.into_iter().map(|child| (child, hash)));
        }
        for (kept, hash) in found.into_iter().rev() {
            let parent = match kept.parent {
                None => Parent::Root(kept.salt.as_str().into()),
                Some(content) => Parent::After(content),
            };
            let key = Arc::new(Key { parent, tokens: kept.tokens.as_slice().into() });
            let taken = self.places[kept.place as usize].content.is_some();
            if taken || self.index.contains_key(&key) {
                continue;
            }
            self.index.insert(key.clone(), kept.place);
            self.places[kept.place as usize].content = Some(Content { number: kept.content, hash, key });
            self.push_unused(kept.place);
        }
    }

    fn class_of(&self, place: PlaceId) -> usize {
        place as usize % self.unused.len()
    }

    fn push_unused(&mut self, place: PlaceId) {
        let class = self.class_of(place);
        self.unused[class].push(place, &mut self.places);
    }

    fn remove_unused(&mut self, place: PlaceId) {
        let class = self.class_of(place);
        self.unused[class].remove(place, &mut self.places);
    }

    fn count_free(&self) -> usize {
        self.free.iter().map(Vec::len).sum()
    }

    pub fn find(&self, key: &Key) -> Option<(PlaceId, &Content)> {
        let place = *self.index.get(key)?;
        Some((place, self.places[place as usize].content.as_ref()?))
    }

    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        self.places.iter().filter_map(|place| Some(place.content.as_ref()?.hash))
    }

    /// Empties a place that has no loads.
    fn empty(&mut self, place: PlaceId) -> Option<Content> {
        let content = self.places[place as usize].content.take()?;
        self.remove_unused(place);
        self.index.remove(&content.key);
        let class = self.class_of(place);
        self.free[class].push(place);
        Some(content)
    }

    /// Whether it holds this content, which is now the last that was used.
    fn touch(&mut self, content: &Content) -> bool {
        let Some(&place) = self.index.get(&content.key) else { return false };
        if self.places[place as usize].loads == 0 {
            self.remove_unused(place);
            self.push_unused(place);
        }
        true
    }

    /// Keeps what a block holds, before it is given to another sequence. None: it is there already, or no
    /// place is free. Else what made room, if anything.
    fn keep(&mut self, block: BlockId, content: &Content) -> Option<Option<Content>> {
        if self.touch(content) {
            return None;
        }
        if let Parent::Root(salt) = &content.key.parent
            && self.outlives
            && salt.len() > limits::MAX_KEPT_SALT
        {
            return None;
        }
        let class = block as usize % self.free.len();
        let gone = match self.free[class].is_empty() {
            true => self.unused[class].oldest().and_then(|oldest| self.empty(oldest)),
            false => None,
        };
        let place = self.free[class].pop()?;
        let (mut parent, mut salt, mut tokens) = (None, String::new(), Vec::new());
        if self.outlives {
            tokens = content.key.tokens.to_vec();
            match &content.key.parent {
                Parent::Root(root) => salt = root.to_string(),
                Parent::After(number) => parent = Some(*number),
            }
        }
        self.saves.push(BlockSave { block, place, content: content.number, parent, salt, tokens });
        self.index.insert(content.key.clone(), place);
        self.places[place as usize].content = Some(content.clone());
        self.push_unused(place);
        Some(gone)
    }
}

impl BlockPool {
    /// How many places hold a block, of how many.
    pub fn host_places(&self) -> (usize, usize) {
        self.host.as_ref().map_or((0, 0), |host| (host.places.len() - host.count_free(), host.places.len()))
    }

    /// A block is full: a tier that outlives the process gets it now, so that what it has is never without its past.
    pub(super) fn copy_full(&mut self, block: BlockId) {
        if self.host.as_ref().is_some_and(|host| host.outlives) {
            self.demote(block);
        }
    }

    /// A registered block is not used any more. Those that follow it were told before, and go before it.
    pub(super) fn touch_place(&mut self, block: BlockId) {
        let content = self.blocks[block as usize].registered.as_ref().map(|registered| &registered.content);
        if let (Some(content), Some(host)) = (content, self.host.as_mut().filter(|host| host.outlives)) {
            host.touch(content);
        }
    }

    /// What a cached block holds goes to the host tier.
    pub(super) fn demote(&mut self, block: BlockId) {
        let content = self.blocks[block as usize].registered.as_ref().map(|registered| &registered.content);
        let (Some(content), Some(host)) = (content, &mut self.host) else { return };
        let hash = content.hash;
        let Some(gone) = host.keep(block, content) else { return };
        if let Some(gone) = gone {
            self.record(gone.hash, false, BlockTier::Host);
        }
        self.record(hash, true, BlockTier::Host);
    }

    /// These places must hold what they hold until they are loaded or let go.
    pub fn hold_places(&mut self, places: &[PlaceId]) {
        let Some(host) = &mut self.host else { return };
        for &place in places {
            if host.places[place as usize].loads == 0 {
                host.remove_unused(place);
            }
            host.places[place as usize].loads += 1;
        }
    }

    /// A place that was held is copied to a block, in the next step.
    pub fn load(&mut self, place: PlaceId, block: BlockId) {
        let Some(host) = &mut self.host else { return };
        let content = host.places[place as usize].content.as_ref().map_or(0, |content| content.number);
        host.loads.push(BlockLoad { block, place, content });
    }

    /// A held place was loaded, or need not be. `damaged`: what it holds is of no use.
    pub fn let_go(&mut self, place: PlaceId, damaged: bool) {
        let Some(host) = &mut self.host else { return };
        let held = &mut host.places[place as usize];
        held.loads -= 1;
        if held.loads == 0 {
            host.push_unused(place);
        }
        // Others that load it find the same.
        if damaged {
            self.empty_place(place);
        }
    }

    fn empty_place(&mut self, place: PlaceId) {
        let Some(host) = self.host.as_mut().filter(|host| host.places[place as usize].loads == 0) else { return };
        if let Some(gone) = host.empty(place) {
            self.record(gone.hash, false, BlockTier::Host);
        }
    }

    /// What the next step copies.
    pub fn take_copies(&mut self) -> (Vec<BlockSave>, Vec<BlockLoad>) {
        self.host
            .as_mut()
            .map(|host| (std::mem::take(&mut host.saves), std::mem::take(&mut host.loads)))
            .unwrap_or_default()
    }

    /// Whether blocks are to be kept now, although nobody needs room for others.
    pub fn wants_saves(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.outlives && !host.saves.is_empty())
    }

    /// A step failed that was to save these contents.
    pub fn not_saved(&mut self, saves: &[(PlaceId, u64)]) {
        for &(place, number) in saves {
            let content = self.host.as_ref().and_then(|host| host.places[place as usize].content.as_ref());
            if content.is_some_and(|content| content.number == number) {
                self.empty_place(place);
            }
        }
    }

    pub(super) fn check_host(&self) -> Result<(), String> {
        let Some(host) = &self.host else { return Ok(()) };
        let unused = host.unused.iter().flat_map(|of_class| of_class.iter(&host.places));
        let mut known: Vec<PlaceId> = host.free.iter().flatten().copied().chain(unused).collect();
        for (id, place) in host.places.iter().enumerate() {
            let Place { content, loads, .. } = place;
            if *loads > 0 {
                known.push(id as PlaceId);
            }
            match content {
                Some(content) if host.index.get(&content.key) != Some(&(id as PlaceId)) => {
                    return Err(format!("place {id} cannot be found"));
                }
                None if *loads > 0 => return Err(format!("place {id} is loaded and empty")),
                _ => {}
            }
        }
        known.sort_unstable();
        let all = known.iter().copied().eq(0..host.places.len() as PlaceId);
        let filled = host.places.iter().filter(|place| place.content.is_some()).count();
        match all && filled == host.index.len() {
            true => Ok(()),
            false => Err(format!("places are lost or counted twice: {known:?}")),
        }
    }
}

//! The worker's side of lanes with two exits (moves.md section 13, X4, X6, X7).

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry};

use super::{LaneId, Parcel};
use crate::{Epoch, ShardKey};

/// Bytes of all messages held.
const HELD_BYTES: usize = 64 << 20;

/// What comes out of a lane, in order.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token<P> {
    /// A message, perhaps with `Enter(k)`.
    Msg { tag: Epoch, enter: Option<Epoch>, parcel: P },
    /// The `Enter(k)` of a message that found no room.
    Enter(Epoch),
    /// `Leave(k)`.
    Leave(Epoch),
}

/// What is to be done with it.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Step<P> {
    /// Nothing: it is held, or was a mere sign.
    Done,
    /// A free item: to its entity if the stay contains the tag, else back.
    Free(Epoch, P),
    /// Back to the network thread.
    Back(P),
    /// `Left(k)`, behind what went back.
    Left(Epoch),
    /// No room to hold it.
    Full(P),
}

#[derive(Debug)]
struct Exit<P> {
    hold: Option<(Epoch, VecDeque<Token<P>>)>,
    back: Option<Epoch>,
    opened: Vec<(Epoch, bool)>,
}

/// Lanes whose exit for a shard is changing. Empty nearly always.
#[derive(Debug)]
pub(super) struct Exits<P> {
    changing: BTreeMap<(ShardKey, LaneId), Exit<P>>,
    ended: BTreeSet<LaneId>,
    held: Load,
    /// Messages held of each lane.
    by_lane: BTreeMap<LaneId, usize>,
}

/// Messages, and their bytes.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
struct Load {
    items: usize,
    bytes: usize,
}

impl Load {
    fn of<'a, P: Parcel + 'a>(tokens: impl IntoIterator<Item = &'a Token<P>>) -> Self {
        let parcels = tokens.into_iter().filter_map(|token| if let Token::Msg { parcel, .. } = token { Some(parcel) } else { None });
        parcels.fold(Self::default(), |load, parcel| Self { items: load.items + 1, bytes: load.bytes + parcel.size() })
    }

    fn add(&mut self, more: Self) {
        *self = Self { items: self.items + more.items, bytes: self.bytes + more.bytes };
    }

    fn take(&mut self, less: Self) {
        *self = Self { items: self.items - less.items, bytes: self.bytes - less.bytes };
    }

    /// Whether the message of a token finds no room beside what is held.
    fn is_too_much<P: Parcel>(self, token: &Token<P>, items: usize) -> bool {
        self.items >= items || self.bytes + Self::of([token]).bytes > HELD_BYTES
    }
}

impl<P> Default for Exits<P> {
    fn default() -> Self {
        Self { changing: BTreeMap::new(), ended: BTreeSet::new(), held: Load::default(), by_lane: BTreeMap::new() }
    }
}

impl<P: Parcel> Exits<P> {
    /// No lane is changing its exit.
    pub fn is_clear(&self) -> bool {
        self.changing.is_empty()
    }

    /// Takes the next token of a lane. `lane_items` and `held_items` bound what is held per (lane, shard) and in all.
    pub fn step(&mut self, lane: LaneId, shard: ShardKey, token: Token<P>, lane_items: usize, held_items: usize) -> Step<P> {
        let at = (shard, lane);
        let entering = match token {
            Token::Msg { enter, .. } => enter,
            Token::Enter(k) => Some(k),
            Token::Leave(_) => None,
        };
        let Some(exit) = self.changing.get_mut(&at) else {
            return match (entering, token) {
                (Some(k), token) => self.hold(at, k, token, held_items),
                (None, Token::Leave(k)) => Step::Left(k),
                (None, Token::Msg { tag, parcel, .. }) => Step::Free(tag, parcel),
                (None, Token::Enter(_)) => Step::Done,
            };
        };
        if let Some((_, queue)) = &mut exit.hold {
            let full = queue.len() >= lane_items || self.held.is_too_much(&token, held_items);
            let (kept, refused) = if full { without_message(token) } else { (Some(token), None) };
            let load = Load::of(&kept);
            queue.extend(kept);
            self.keep(lane, load);
            return refused.map_or(Step::Done, Step::Full);
        }
        if let Some(k) = entering {
            let Some(open) = exit.opened.iter().position(|o| o.0 == k) else {
                return self.hold(at, k, token, held_items);
            };
            let (_, yes) = exit.opened.remove(open);
            exit.back = (!yes).then_some(k);
        }
        let back = exit.back;
        let step = match token {
            Token::Leave(k) => {
                if back == Some(k) {
                    exit.back = None;
                }
                Step::Left(k)
            }
            Token::Msg { parcel, .. } if back.is_some() => Step::Back(parcel),
            Token::Msg { tag, parcel, .. } => Step::Free(tag, parcel),
            Token::Enter(_) => Step::Done,
        };
        self.tidy(at);
        step
    }

    /// Whether so many more messages of a lane can be held, should they have to be. One of which something is held already had better keep the rest in
    /// its ring, where its producer sees that there is no room, than have it refused here.
    pub fn has_room(&self, lane: LaneId, more: usize, lane_items: usize, held_items: usize) -> bool {
        let Some(held) = self.by_lane.get(&lane) else { return true };
        held + more <= lane_items && self.held.items + more <= held_items && self.held.bytes <= HELD_BYTES / 2
    }

    /// Counts what is held, by its lane as well.
    fn keep(&mut self, lane: LaneId, load: Load) {
        self.held.add(load);
        *self.by_lane.entry(lane).or_default() += load.items;
    }

    /// `Open(k, yes)`: what was held is taken out, to be put through `step` again in its order.
    pub fn open(&mut self, lane: LaneId, shard: ShardKey, k: Epoch, yes: bool) -> VecDeque<Token<P>> {
        let exit = self.changing.entry((shard, lane)).or_insert_with(|| Exit { hold: None, back: None, opened: vec![] });
        // Enter(k) stands at the front of the queue, and finds this.
        exit.opened.push((k, yes));
        match exit.hold.take_if(|(held, _)| *held == k) {
            Some((_, queue)) => {
                let load = Load::of(&queue);
                self.held.take(load);
                if let Entry::Occupied(mut held) = self.by_lane.entry(lane) {
                    *held.get_mut() -= load.items;
                    if *held.get() == 0 {
                        held.remove();
                    }
                }
                queue
            }
            None => VecDeque::new(),
        }
    }

    /// The last item of the lane was met. True if nothing of it is held; otherwise `finished` says when.
    pub fn end(&mut self, lane: LaneId) -> bool {
        self.ended.insert(lane);
        self.finished(lane)
    }

    /// The lane has ended and nothing of it is held: it is forgotten, once.
    pub fn finished(&mut self, lane: LaneId) -> bool {
        let held = self.changing.iter().any(|((_, l), exit)| *l == lane && exit.hold.is_some());
        let done = !held && self.ended.remove(&lane);
        if done {
            self.changing.retain(|(_, l), _| *l != lane);
        }
        done
    }

    /// The stay is over, so that tags say what goes back.
    pub fn stay_ended(&mut self, shard: ShardKey) {
        let lanes: Vec<_> = self.changing.range((shard, LaneId(0))..=(shard, LaneId(u32::MAX))).map(|(at, _)| *at).collect();
        for at in lanes {
            if let Some(exit) = self.changing.get_mut(&at) {
                exit.back = None;
            }
            self.tidy(at);
        }
    }

    /// Everything that is held, given up.
    pub fn take(&mut self) -> Vec<(ShardKey, LaneId, VecDeque<Token<P>>)> {
        self.held = Load::default();
        self.by_lane.clear();
        let changing = std::mem::take(&mut self.changing);
        changing.into_iter().filter_map(|((shard, lane), exit)| exit.hold.map(|(_, queue)| (shard, lane, queue))).collect()
    }

    /// Lanes that have ended while something of them was held.
    pub fn take_ended(&mut self) -> BTreeSet<LaneId> {
        std::mem::take(&mut self.ended)
    }

    /// Asserts that the total is that of the queues.
    pub fn check(&self) {
        let all = self.changing.values().flat_map(|e| &e.hold).flat_map(|(_, queue)| queue);
        assert_eq!(Load::of(all), self.held, "items held for their lane's other exit");
        assert_eq!(self.by_lane.values().sum::<usize>(), self.held.items, "items held by lane");
        assert!(self.changing.values().all(|e| e.hold.is_some() || e.back.is_some() || !e.opened.is_empty()), "an idle lane is forgotten");
    }

    fn hold(&mut self, at: (ShardKey, LaneId), k: Epoch, token: Token<P>, held_items: usize) -> Step<P> {
        let full = self.held.is_too_much(&token, held_items);
        let (kept, refused) = if full { without_message(token) } else { (Some(token), None) };
        self.keep(at.1, Load::of(&kept));
        let exit = self.changing.entry(at).or_insert_with(|| Exit { hold: None, back: None, opened: vec![] });
        exit.hold = Some((k, kept.into_iter().collect()));
        refused.map_or(Step::Done, Step::Full)
    }

    fn tidy(&mut self, at: (ShardKey, LaneId)) {
        if self.changing.get(&at).is_some_and(|e| e.hold.is_none() && e.back.is_none() && e.opened.is_empty()) {
            self.changing.remove(&at);
        }
    }
}

/// What stays of a token when its message finds no room: never less than the sign it carries.
fn without_message<P>(token: Token<P>) -> (Option<Token<P>>, Option<P>) {
    match token {
        Token::Msg { enter, parcel, .. } => (enter.map(Token::Enter), Some(parcel)),
        sign => (Some(sign), None),
    }
}

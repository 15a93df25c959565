//! Open addressing from a hash to a slot, for keys that are stored once, elsewhere.

/// 32 mixed bits of a hash: position and first comparison in one.
pub(super) type Tag = u32;

const EMPTY: u32 = u32::MAX;
const CELLS_MIN: usize = 8;

/// A place in the table.
#[derive(Copy, Clone)]
pub(super) struct Cell {
    tag: Tag,
    slot: u32,
}

/// Where the slots are: 8 bytes per cell, linear probing, removal by shifting back, so that no tombstones pile up. A large one grows by a
/// quarter, so that from 60 to 75 of 100 cells are used; a tag's home is its share of the table, so that growing goes from one end to the other in both.
///
/// Iteration is not offered: the order of cells depends on the secret, and nothing that is decided may depend on that.
#[derive(Default)]
pub(super) struct Index {
    cells: Vec<Cell>,
    used: usize,
}

/// Mixes a hash that others chose with a secret they do not know, so that they cannot pile keys up in one place.
#[inline]
pub(super) fn tag(hash: u64, secret: u64) -> Tag {
    let product = u128::from(hash ^ secret) * 0x9e37_79b9_7f4a_7c15_u128;
    let folded = (product >> 64) as u64 ^ product as u64;
    (folded >> 32) as u32 ^ folded as u32
}

impl Index {
    /// The slot whose tag is `tag` and for which `is` holds.
    #[inline]
    pub fn find(&self, tag: Tag, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.cells.is_empty() {
            return None;
        }
        let mut at = self.home(tag);
        loop {
            let cell = self.cells[at];
            if cell.slot == EMPTY {
                return None;
            }
            if cell.tag == tag && is(cell.slot) {
                return Some(cell.slot);
            }
            at = self.after(at);
        }
    }

    /// The slot with that tag that is found first, if there is one; else none, or one that there is not.
    #[inline]
    pub fn first_slot(&self, tag: Tag) -> Option<u32> {
        let mut at = self.home(tag);
        loop {
            let cell = self.cells.get(at)?;
            if cell.tag == tag {
                return Some(cell.slot);
            }
            if cell.slot == EMPTY {
                return None;
            }
            at = self.after(at);
        }
    }

    /// The cell in which the search for a tag begins.
    #[inline]
    pub fn first(&self, tag: Tag) -> Option<&Cell> {
        self.cells.get(self.home(tag))
    }

    /// Adds a slot that is not in here.
    pub fn insert(&mut self, tag: Tag, slot: u32) {
        debug_assert_ne!(slot, EMPTY, "the last slot number marks an empty cell");
        if (self.used + 1) * 4 > self.cells.len() * 3 {
            self.resize(self.cells.len() + (self.cells.len() / 4).max(CELLS_MIN));
        }
        self.place(Cell { tag, slot });
        self.used += 1;
    }

    /// Makes room for so many more at once.
    pub fn reserve(&mut self, count: usize) {
        let needed = ((self.used + count) * 4).div_ceil(3);
        if needed > self.cells.len() {
            self.resize(needed.max(CELLS_MIN));
        }
    }

    /// Takes a slot out; false if it was not in here.
    pub fn remove(&mut self, tag: Tag, slot: u32) -> bool {
        if self.cells.is_empty() {
            return false;
        }
        let mut at = self.home(tag);
        while self.cells[at].slot != slot {
            if self.cells[at].slot == EMPTY {
                return false;
            }
            at = self.after(at);
        }
        let mut next = self.after(at);
        while self.cells[next].slot != EMPTY {
            let home = self.home(self.cells[next].tag);
            // The cell may move back into the gap only if the gap lies on its own way from its home.
            if self.distance(home, next) >= self.distance(at, next) {
                self.cells[at] = self.cells[next];
                at = next;
            }
            next = self.after(next);
        }
        self.cells[at].slot = EMPTY;
        self.used -= 1;
        if self.cells.len() > CELLS_MIN && self.used * 8 < self.cells.len() {
            self.resize((self.cells.len() / 2).max(CELLS_MIN));
        }
        true
    }

    /// How many slots are in here.
    pub fn len(&self) -> usize {
        self.used
    }

    fn resize(&mut self, cells: usize) {
        let old = std::mem::replace(&mut self.cells, vec![Cell { tag: 0, slot: EMPTY }; cells]);
        old.into_iter().filter(|c| c.slot != EMPTY).for_each(|c| self.place(c));
    }

    fn place(&mut self, cell: Cell) {
        let mut at = self.home(cell.tag);
        while self.cells[at].slot != EMPTY {
            at = self.after(at);
        }
        self.cells[at] = cell;
    }

    #[inline]
    fn home(&self, tag: Tag) -> usize {
        ((u64::from(tag) * self.cells.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    /// Steps from one cell to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.cells.len() - from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_one_tag_are_told_apart_by_the_comparison() {
        let mut index = Index::default();
        (0..100).for_each(|slot| index.insert(7, slot));
        for slot in 0..100 {
            assert_eq!(index.find(7, |s| s == slot), Some(slot));
        }
        assert!(index.remove(7, 50) && !index.remove(7, 50));
        assert_eq!((index.find(7, |s| s == 50), index.find(7, |s| s == 99)), (None, Some(99)));
    }

    #[test]
    fn it_agrees_with_an_ordered_map_over_many_changes() {
        let mut rng = crate::proto::rng::Rng::new(3);
        let (mut index, mut model) = (Index::default(), std::collections::BTreeMap::new());
        for _ in 0..60_000 {
            let slot = rng.below(4_000) as u32;
            // Few tags, some of them around the end of the table, so that runs are long and wrap.
            let tag = tag(u64::from(slot % 700), 9) | if slot.is_multiple_of(3) { 0xfff << 20 } else { 0 };
            match model.remove(&slot) {
                Some(tag) => assert!(index.remove(tag, slot)),
                None => {
                    model.insert(slot, tag);
                    index.insert(tag, slot);
                }
            }
            assert_eq!(index.len(), model.len());
        }
        for slot in 0..4_000 {
            let tag = model.get(&slot).copied();
            assert!(tag.is_none_or(|tag| index.first_slot(tag).is_some_and(|first| model.get(&first) == Some(&tag))));
            assert_eq!(tag.and_then(|t| index.find(t, |s| s == slot)), tag.map(|_| slot));
        }
        for (slot, tag) in model {
            assert!(index.remove(tag, slot));
        }
        assert_eq!((index.len(), index.cells.len()), (0, CELLS_MIN), "memory is given back");
    }

    #[test]
    fn the_secret_moves_keys() {
        let same = (0..1_000u64).filter(|&h| tag(h, 1) & 0xff == tag(h, 2) & 0xff).count();
        assert!(same < 30, "{same} of 1000 stay in their place");
    }
}

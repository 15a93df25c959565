//! Open addressing from a hash to a slot, for keys that are stored once, elsewhere.

/// 32 mixed bits of a hash: position and first comparison in one.
pub(super) type Tag = u32;

const EMPTY: u32 = u32::MAX;
/// Cells that are looked at together.
const GROUP: usize = 4;
const GROUPS_MIN: usize = 2;

/// A few places in the table, in half a line of the cache.
#[derive(Copy, Clone)]
#[repr(align(32))]
pub(super) struct Group {
    tags: [Tag; GROUP],
    slots: [u32; GROUP],
}

/// Where the slots are: 8 bytes per cell, linear probing by groups, removal by shifting back, so that no tombstones pile up. A large one grows by a
/// quarter, so that from 60 to 75 of 100 cells are used; a tag's home is its share of the table, so that growing goes from one end to the other in both.
///
/// By groups, as they are compared without a branch: how many cells are looked at is chance, so a processor that foresees it cell by cell is wrong with every
/// third key, and begins anew when the cell has come, where the slot could have been on its way. The first group has the key in nine of ten searches.
///
/// Iteration is not offered: the order of cells depends on the secret, and nothing that is decided may depend on that.
#[derive(Default)]
pub(super) struct Index {
    groups: Vec<Group>,
    used: usize,
}

/// Mixes a hash that others chose with a secret they do not know, so that they cannot pile keys up in one place.
#[inline]
pub(super) fn tag(hash: u64, secret: u64) -> Tag {
    let product = u128::from(hash ^ secret) * 0x9e37_79b9_7f4a_7c15_u128;
    let folded = (product >> 64) as u64 ^ product as u64;
    // Both halves, as one alone moves by what is known where two hashes differ in their upper half.
    (folded >> 32) as u32 ^ folded as u32
}

impl Group {
    const NONE: Self = Self { tags: [0; GROUP], slots: [EMPTY; GROUP] };

    /// The slot of the first cell with that tag, if there is one; of an empty one it is none.
    #[inline(always)]
    fn with(&self, tag: Tag) -> Option<u32> {
        let at = (0..GROUP - 1).rev().fold(GROUP - 1, |first, at| if self.tags[at] == tag { at } else { first });
        (self.tags[at] == tag).then_some(self.slots[at])
    }

    /// The first empty cell.
    #[inline]
    fn vacant(&self) -> Option<usize> {
        self.slots.iter().position(|slot| *slot == EMPTY)
    }
}

impl Index {
    /// The slot whose tag is `tag` and for which `is` holds.
    #[inline]
    pub fn find(&self, tag: Tag, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(tag);
        loop {
            let group = self.groups.get(at)?;
            for (there, slot) in group.tags.iter().zip(group.slots) {
                if slot == EMPTY {
                    return None;
                }
                if *there == tag && is(slot) {
                    return Some(slot);
                }
            }
            at = self.after(at);
        }
    }

    /// The slot with that tag that is found first, if there is one; else none, or one that there is not.
    #[inline(always)]
    pub fn first_slot(&self, tag: Tag) -> Option<u32> {
        let mut at = self.home(tag);
        loop {
            let group = self.groups.get(at)?;
            // In front of an empty cell, as all that are behind one came to their homes there.
            if let Some(slot) = group.with(tag) {
                return Some(slot);
            }
            if group.vacant().is_some() {
                return None;
            }
            at = self.after(at);
        }
    }

    /// The group in which the search for a tag begins.
    #[inline]
    pub fn first(&self, tag: Tag) -> Option<&Group> {
        self.groups.get(self.home(tag))
    }

    /// Adds a slot that is not in here.
    pub fn insert(&mut self, tag: Tag, slot: u32) {
        debug_assert_ne!(slot, EMPTY, "the last slot number marks an empty cell");
        if (self.used + 1) * 4 > self.groups.len() * GROUP * 3 {
            self.resize(self.groups.len() + (self.groups.len() / 4).max(GROUPS_MIN));
        }
        self.place(tag, slot);
        self.used += 1;
    }

    /// Makes room for so many more at once.
    pub fn reserve(&mut self, count: usize) {
        let needed = ((self.used + count) * 4).div_ceil(3 * GROUP);
        if needed > self.groups.len() {
            self.resize(needed.max(GROUPS_MIN));
        }
    }

    /// Takes a slot out; false if it was not in here.
    pub fn remove(&mut self, tag: Tag, slot: u32) -> bool {
        let mut group = self.home(tag);
        let mut gap = loop {
            let Some(there) = self.groups.get(group) else { return false };
            if let Some(at) = there.slots.iter().position(|s| *s == slot) {
                break group * GROUP + at;
            }
            if there.vacant().is_some() {
                return false;
            }
            group = self.after(group);
        };
        let cells = self.groups.len() * GROUP;
        let mut next = (gap + 1) % cells;
        while self.cell(next).1 != EMPTY {
            let (tag, slot) = self.cell(next);
            let home = self.home(tag) * GROUP;
            // The cell may move back into the gap only if the gap lies on its own way from its home.
            let distance = |from: usize| (next + cells - from) % cells;
            if distance(home) >= distance(gap) {
                self.set(gap, tag, slot);
                gap = next;
            }
            next = (next + 1) % cells;
        }
        self.set(gap, 0, EMPTY);
        self.used -= 1;
        if self.groups.len() > GROUPS_MIN && self.used * 8 < cells {
            self.resize((self.groups.len() / 2).max(GROUPS_MIN));
        }
        true
    }

    /// How many slots are in here.
    pub fn len(&self) -> usize {
        self.used
    }

    fn resize(&mut self, groups: usize) {
        let old = std::mem::replace(&mut self.groups, vec![Group::NONE; groups]);
        let cells = old.into_iter().flat_map(|group| group.tags.into_iter().zip(group.slots));
        cells.filter(|(_, slot)| *slot != EMPTY).for_each(|(tag, slot)| self.place(tag, slot));
    }

    fn place(&mut self, tag: Tag, slot: u32) {
        let mut group = self.home(tag);
        let vacant = loop {
            match self.groups[group].vacant() {
                Some(at) => break group * GROUP + at,
                None => group = self.after(group),
            }
        };
        self.set(vacant, tag, slot);
    }

    fn cell(&self, at: usize) -> (Tag, u32) {
        let group = &self.groups[at / GROUP];
        (group.tags[at % GROUP], group.slots[at % GROUP])
    }

    fn set(&mut self, at: usize, tag: Tag, slot: u32) {
        let group = &mut self.groups[at / GROUP];
        (group.tags[at % GROUP], group.slots[at % GROUP]) = (tag, slot);
    }

    #[inline]
    fn home(&self, tag: Tag) -> usize {
        ((u64::from(tag) * self.groups.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, group: usize) -> usize {
        if group + 1 == self.groups.len() { 0 } else { group + 1 }
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
        assert_eq!((index.len(), index.groups.len()), (0, GROUPS_MIN), "memory is given back");
    }

    #[test]
    fn the_secret_moves_keys() {
        let same = (0..1_000u64).filter(|&h| tag(h, 1) & 0xff == tag(h, 2) & 0xff).count();
        assert!(same < 30, "{same} of 1000 stay in their place");
    }
}

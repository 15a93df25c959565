//! Whether a thread's batches are written through the caches or past them.
//!
//! Through them a batch is where its consumer finds it soonest, and each of its lines has to come from the consumer's core first. Where the cores share a
//! cache that is for nothing; where a line's way takes longer than a message, the sender does nothing but wait for lines. Which of the two it is changes
//! with the cores that the system gives to the threads, and that a virtual machine is given, so it is measured all the time: now and then some batches go the
//! other way, and the faster one is kept. It has to be much faster, as the consumer waits for the memory then, which the sender does not see. Small batches
//! always go through the caches.

/// Batches that take less are not looked at: reading the counter would be a part of it.
const BYTES_MIN: usize = 1024;
/// So many batches go the way that is known as the faster one, at the end of which it is measured,
const BETWEEN: u32 = 1024;
/// fewer of them at first and where a trial says something else than the one before,
const FIRST: u32 = 32;
/// and so many then go the other way. What the first of them find in the caches is of the way before.
const TRIAL: u32 = 8;
/// Of so many the fastest one counts: what comes between is no matter of the way.
const MEASURED: u32 = 4;

/// What is known of both ways.
#[derive(Debug)]
pub struct Past {
    /// Bytes of the smallest batches that are looked at.
    from: usize,
    /// The one that is taken is past the caches.
    on: bool,
    /// That one is faster by the last trial. Two in a row have to say so, as not all batches are alike.
    faster: bool,
    /// Batches until the next decision, the trial among them.
    left: u32,
    /// Ticks for a KiB, of the fastest batch that was measured since the last decision: through the caches, and past them.
    ticks: [u64; 2],
}

/// A batch that is being written.
#[derive(Copy, Clone, Debug)]
pub struct Writing {
    /// It goes past the caches.
    pub past: bool,
    /// It counts.
    counts: bool,
    /// When it began, if it is measured.
    began: Option<u64>,
}

impl Default for Past {
    fn default() -> Self {
        Self { from: BYTES_MIN, on: false, faster: false, left: FIRST + TRIAL, ticks: [u64::MAX; 2] }
    }
}

impl Past {
    /// Through the caches always: where time is virtual nothing depends on how long something takes.
    pub fn never() -> Self {
        Self { from: usize::MAX, ..Self::default() }
    }

    /// A batch of at most so many bytes begins; `ticks` reads a counter, if there is one.
    #[inline]
    pub fn begin(&self, bytes: usize, ticks: impl FnOnce() -> Option<u64>) -> Writing {
        if bytes < self.from {
            return Writing { past: false, counts: false, began: None };
        }
        let trial = self.left <= TRIAL;
        let left = if trial { self.left } else { self.left - TRIAL };
        Writing { past: self.on != trial, counts: true, began: if left <= MEASURED { ticks() } else { None } }
    }

    /// It has ended, with so many bytes.
    #[inline]
    pub fn end(&mut self, writing: Writing, bytes: usize, ticks: impl FnOnce() -> Option<u64>) {
        if !writing.counts {
            return;
        }
        if let Some(began) = writing.began.filter(|_| bytes >= self.from)
            && let Some(now) = ticks()
        {
            let fastest = &mut self.ticks[usize::from(writing.past)];
            *fastest = (*fastest).min(now.wrapping_sub(began).saturating_mul(1024) / bytes as u64);
        }
        self.left -= 1;
        if self.left == 0 {
            self.decide();
        }
    }

    #[cold]
    fn decide(&mut self) {
        let [through, past] = self.ticks;
        // Batches that found no room are not measured, and of what was not nothing is known.
        if self.ticks.contains(&u64::MAX) {
            *self = Self { from: self.from, on: self.on, faster: self.on, left: BETWEEN + TRIAL, ..Self::default() };
            return;
        }
        // What is past them stays there until it is not even half as fast again, so that two ways that are nearly alike do not take turns.
        let times = |ticks: u64, n: u64| ticks.saturating_mul(n);
        let faster = if self.on { times(past, 3) < times(through, 2) } else { times(past, 2) < through };
        let on = if faster == self.faster { faster } else { self.on };
        // The next one soon, where this one was the first to say so.
        let left = if faster == on { BETWEEN } else { FIRST } + TRIAL;
        *self = Self { from: self.from, on, faster, left, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of so many bytes, each of which takes `ticks` by its way and number: how many of the last 2 * (BETWEEN + TRIAL) went past the caches.
    fn past_of(past: &mut Past, bytes: usize, ticks: impl Fn(bool, u32) -> u64) -> u32 {
        let mut now = 0;
        let mut batch = |i: u32| {
            let writing = past.begin(bytes, || Some(now));
            now = now.wrapping_add(ticks(writing.past, i));
            past.end(writing, bytes, || Some(now));
            u32::from(writing.past)
        };
        let counted = 2 * (BETWEEN + TRIAL);
        (0..counted).for_each(|i| _ = batch(i));
        (counted..2 * counted).map(batch).sum()
    }

    #[test]
    fn the_faster_way_is_taken_and_the_other_one_tried() {
        let slow_through = |past: bool, _| if past { 2_000 } else { 10_000 };
        let mut past = Past::default();
        assert_eq!(past_of(&mut past, 8192, |_, _| 2_000), 2 * TRIAL);
        assert_eq!(past_of(&mut past, 8192, slow_through), 2 * BETWEEN);
        assert_eq!(past_of(&mut past, 8192, |past, _| if past { 3_000 } else { 2_000 }), 2 * TRIAL);
    }

    #[test]
    fn ways_that_are_nearly_alike_do_not_take_turns() {
        let nearly = |past: bool, _| if past { 10_000 } else { 17_000 };
        let mut past = Past::default();
        assert_eq!(past_of(&mut past, 8192, nearly), 2 * TRIAL, "not twice as fast");
        assert_eq!(past_of(&mut past, 8192, |past, _| if past { 10_000 } else { 21_000 }), 2 * BETWEEN);
        assert_eq!(past_of(&mut past, 8192, nearly), 2 * BETWEEN, "still half as fast again");
    }

    #[test]
    fn what_comes_between_is_no_matter_of_the_way() {
        // A thread that loses its core for a while in all but one of the measured ones.
        let disturbed = |past: bool, i: u32| u64::from(!i.is_multiple_of(4)) * 1_000_000 + if past { 2_000 } else { 10_000 };
        assert_eq!(past_of(&mut Past::default(), 8192, disturbed), 2 * BETWEEN);
    }

    #[test]
    fn one_trial_alone_changes_nothing() {
        let mut past = Past::default();
        let mut trial = |ticks: [u64; 2]| {
            for _ in 0..past.left {
                let writing = past.begin(8192, || Some(0));
                past.end(writing, 8192, || Some(ticks[usize::from(writing.past)]));
            }
            past.on
        };
        let (near, far) = ([2_000, 2_000], [10_000, 2_000]);
        assert!(![near, far, near, far, near].map(&mut trial).contains(&true));
        assert_eq!([far, far, near, far, near, near].map(trial), [false, true, true, true, true, false]);
    }

    #[test]
    fn a_counter_that_goes_back_does_not_count() {
        let back = |past: bool, i: u32| {
            if i.is_multiple_of(3) {
                u64::MAX - 500
            } else if past {
                3_000
            } else {
                2_000
            }
        };
        assert_eq!(past_of(&mut Past::default(), 8192, back), 2 * TRIAL);
    }

    #[test]
    fn small_batches_go_through_the_caches_whatever_is_known() {
        let mut past = Past::default();
        let slow_through = |past: bool, _| if past { 2_000 } else { 10_000 };
        assert_eq!(past_of(&mut past, BYTES_MIN, slow_through), 2 * BETWEEN);
        assert_eq!(past_of(&mut past, BYTES_MIN - 1, slow_through), 0);
        // In the middle of a trial as well.
        let mut past = Past::default();
        (0..FIRST).for_each(|_| past.end(past.begin(8192, || Some(0)), 8192, || Some(2_000)));
        assert!(past.begin(8192, || Some(0)).past && !past.begin(BYTES_MIN - 1, || Some(0)).past);
        assert_eq!(past_of(&mut Past::never(), 8192, slow_through), 0);
    }

    #[test]
    fn a_way_that_was_not_measured_is_not_the_slower_one() {
        // Of those through the caches none finds room.
        let mut past = Past::default();
        for on in [false, true] {
            past.on = on;
            for _ in 0..4 * (BETWEEN + TRIAL) {
                let writing = past.begin(8192, || Some(0));
                past.end(writing, if writing.past { 8192 } else { 64 }, || Some(2_000));
            }
            assert_eq!(past.on, on);
        }
    }

    #[test]
    fn without_a_counter_both_ways_are_alike() {
        let mut past = Past::default();
        for _ in 0..3 * (BETWEEN + TRIAL) {
            past.end(past.begin(8192, || None), 8192, || None);
        }
        assert!(!past.on);
    }
}

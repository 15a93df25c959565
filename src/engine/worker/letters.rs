//! The short way of messages on their worker: from where their senders have put them, to their entities.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use super::Worker;
use crate::{
    Time,
    engine::{
        clock::Clock,
        lane::{Front, Look, Ring},
        letter::Letter,
        moment::{Moment, PACE},
        node::ToWorker,
        types::Mail,
        worker_host::{HANDLE, WorkerHost},
    },
    proto::shard::{Approach, NoShortWay, Others, Route, ShardCore},
};

/// Messages whose entities are searched for at once, at most.
pub(super) const GROUP: usize = PACE;

/// Messages that are handled one behind the other.
struct Row<'a> {
    done: usize,
    /// Before it has been so many, it is seen whether they go fast,
    upto: usize,
    /// and then it may be so many.
    most: usize,
    /// They did.
    fast: bool,
    /// The last of them was handled, and it is seen then how to go on.
    ended: bool,
    /// Some were of this node, and some came from another one.
    from: [bool; 2],
    moment: Moment,
    clock: &'a Clock,
}

impl Row<'_> {
    /// The next one, whose entity is found and has its turn.
    #[inline(always)]
    fn step(&mut self, core: &mut ShardCore<WorkerHost>, host: &mut WorkerHost, route: Route, key: &[u8], letter: &mut Letter<'_>) -> Look {
        let turn = core.straight_way(route, key, host, |host, at, entity| {
            self.done += 1;
            host.handle_letter(at, key, entity, letter)
        });
        let Ok(others) = turn else { return Look::Stays };
        self.from[usize::from(route.3)] = true;
        if others == Others::Good && (self.done < self.upto || self.goes_on()) {
            return Look::Next;
        }
        self.ended = true;
        Look::Last
    }

    /// Apart, as its part is small: what it needs is not to be at hand for each message.
    #[cold]
    #[inline(never)]
    fn goes_on(&mut self) -> bool {
        self.upto = self.most.min(self.done + PACE);
        self.fast && self.done < self.upto && self.moment.is_soon(self.clock)
    }
}

/// Messages that went the short way.
struct Ran {
    done: usize,
    /// What was known of the ways of the others is still good.
    good: bool,
    /// The one at the front may go the short way too.
    short: bool,
}

impl Worker {
    /// Handles messages where their senders have put them, in one lane, as far as none of them has to go the long way, and at most `most`: how
    /// many. Some at a time, so that searching for their entities waits for memory once.
    pub(super) fn letters(&mut self, lane: &mut Ring<ToWorker>, most: usize) -> usize {
        let (mut done, mut short) = (0, true);
        let mut approaches = [Approach::default(); GROUP];
        while short && done < most {
            let now = self.moment();
            if done > 0 && !self.host.moments.is_fast() {
                break;
            }
            let some = (most - done).min(self.host.moments.left());
            // A worker that is close behind a producer takes the lines from it that are written to, so it takes its time then.
            if self.core.goes_straight() && (lane.own || lane.is_busy()) {
                let ran = self.run_straight(lane, some, most - done);
                (done, short) = (done + ran.done, ran.short);
                self.host.moments.handled(ran.done);
                continue;
            }
            let wanted = self.group.min(some);
            let found = self.look_ahead(now, lane, &mut approaches[..wanted]);
            if found == 0 {
                break;
            }
            let approaches = &mut approaches[..found];
            self.core.come_near(approaches);
            let ran = self.run(lane, approaches);
            self.group = if ran.done == found && ran.good { GROUP.min(2 * self.group) } else { 1 };
            (done, short) = (done + ran.done, ran.short);
            self.host.moments.handled(ran.done);
        }
        self.host.handled += done as u64;
        done
    }

    /// Begins the ways of the messages at the front of the lane, as many as there is room for: how many may go the short way. A function of its
    /// own, as are the next steps, because each of them keeps a processor's registers busy.
    #[inline(never)]
    fn look_ahead(&mut self, now: Time, lane: &mut Ring<ToWorker>, approaches: &mut [Approach]) -> usize {
        if !self.core.opens_short_way(now) {
            return 0;
        }
        let room = approaches.len();
        let (mut places, mut local, mut abroad) = (approaches.iter_mut(), false, false);
        lane.ahead(|letter| {
            let Some((approach, arrived)) = self.approach(now, letter) else { return false };
            let Some(place) = places.next() else { return false };
            *place = approach;
            (local, abroad) = (local | !arrived, abroad | arrived);
            places.len() > 0
        });
        let found = room - places.len();
        (self.local, self.abroad) = (self.local | local, self.abroad | abroad);
        found
    }

    /// The way to the entity that the message is for, if that may be the short one, and whether it came from another node.
    #[inline(always)]
    fn approach(&self, now: Time, letter: &Letter<'_>) -> Option<(Approach, bool)> {
        let route = letter.route();
        if self.host.takes_long_way(now, letter, route.0.ty) {
            return None;
        }
        let approach = self.core.approach(route)?;
        if let Some(ask) = letter.asker().0 {
            self.host.will_answer(ask);
        }
        Some((approach, route.3))
    }

    /// Hands the messages at the front of the lane to their entities, one after the other, for as long as what is known of the ways there is good.
    #[inline(never)]
    fn run(&mut self, lane: &mut Ring<ToWorker>, approaches: &[Approach]) -> Ran {
        let Self { core, host, .. } = self;
        let mut ran = Ran { done: 0, good: true, short: true };
        // One guard for all of them: what it costs would be a good part of a message. An entity that panics is dropped, so nobody sees a broken
        // state of it.
        let run = AssertUnwindSafe(|| {
            let mut approaches = approaches.iter();
            lane.letters(|letter| {
                let Some(approach) = approaches.next() else { return Look::Stays };
                let key = letter.key();
                let turn = core.short_way(*approach, key, host, |host, at, entity| {
                    ran.done += 1;
                    host.handle_letter(at, key, entity, letter)
                });
                match turn {
                    Ok(Others::Good) => Look::Next,
                    Ok(Others::Stale) => {
                        ran.good = false;
                        Look::Last
                    }
                    Err(NoShortWay) => {
                        (ran.good, ran.short) = (false, false);
                        Look::Stays
                    }
                }
            });
        });
        if let Err(panic) = catch_unwind(run) {
            self.panicked(lane, approaches[ran.done.saturating_sub(1)], panic);
        }
        ran
    }

    /// Hands the messages at the front of the lane to their entities, each found when its turn comes: `some`, and up to `most` while all goes fast.
    #[inline(never)]
    fn run_straight(&mut self, lane: &mut Ring<ToWorker>, some: usize, most: usize) -> Ran {
        let Self { core, host, local, abroad, node, .. } = self;
        let moment = host.moments.last();
        let now = moment.now;
        let mut ran = Ran { done: 0, good: true, short: false };
        if !core.opens_short_way(now) {
            return ran;
        }
        let mut row =
            Row { done: 0, upto: some, most, fast: host.moments.is_fast(), ended: false, from: [false; 2], moment, clock: &node.clock };
        let run = AssertUnwindSafe(|| {
            lane.letters(|letter| {
                let route = letter.route();
                match letter.plain_key() {
                    // The same, of which less has to be found out.
                    Some(key) if !host.types.any_keeps() => row.step(core, host, (route.0, route.1, route.2, false), key, letter),
                    _ if host.takes_long_way(now, letter, route.0.ty) => Look::Stays,
                    _ => row.step(core, host, route, letter.key(), letter),
                }
            });
        });
        let ended = catch_unwind(run);
        (ran.done, ran.short) = (row.done, row.ended);
        (*local, *abroad) = (*local | row.from[0], *abroad | row.from[1]);
        if let Err(panic) = ended {
            let mut approach = [Approach::default()];
            let found = self.look_ahead(now, lane, &mut approach);
            self.core.come_near(&mut approach[..found]);
            self.panicked(lane, approach[0], panic);
            ran.short = true;
        }
        ran
    }

    /// The entity there has panicked in its turn, whose message is at the front of the lane.
    #[cold]
    fn panicked(&mut self, lane: &mut Ring<ToWorker>, approach: Approach, panic: Box<dyn Any + Send>) {
        let Self { host, core, .. } = self;
        if !host.busy.is_inside() {
            // Not code of the entity's.
            resume_unwind(panic);
        }
        let mut panic = Some(panic);
        let found = lane.with_next(|front| {
            let (Front::Letter(mut letter), Some(panic)) = (front, panic.take()) else { return false };
            let turn = core.short_way(approach, letter.key(), host, |host, at, entity| {
                host.leave();
                host.was_slow(at, &**entity);
                let info = host.panic_info(at, HANDLE, panic);
                host.panicked(at, &entity.key(), &mut Mail::Letter(&mut letter), *info)
            });
            turn.is_ok()
        });
        assert_eq!(found, Some(true), "a message at the front stays there until its turn has ended");
    }
}

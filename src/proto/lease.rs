//! A lock with a time limit that stands outside the cluster: what is asked of it, and the table that a lease in memory keeps.

use std::{collections::BTreeMap, time::Duration};

use crate::{NodeId, Term, Time};

/// What a node asks of the lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseCall {
    /// Hold it from now on.
    Acquire {
        /// Which lease.
        name: String,
        /// For whom. Who holds it already gets it again.
        owner: NodeId,
        /// It falls free so long after it was last given.
        ttl: Duration,
    },
    /// Give it back.
    Release {
        /// Which lease.
        name: String,
        /// Under which it was given.
        term: Term,
    },
}

/// What came of an `Acquire`. A `Release` is not answered: the time limit does the same, later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseAnswer {
    /// It is the asker's.
    Held(Term),
    /// Somebody else holds it.
    Taken,
    /// It could not be asked: why. Nobody knows whether it was given.
    Failed(String),
}

/// Leases by name, with who holds them until when.
#[derive(Clone, Debug, Default)]
pub struct LeaseTable {
    held: BTreeMap<String, Holder>,
    /// Newest term of any lease: terms never go back, also not those of a lease that nobody held for a while.
    last: u64,
}

#[derive(Clone, Debug)]
struct Holder {
    owner: NodeId,
    term: Term,
    until: Time,
}

impl LeaseTable {
    /// The term under which `owner` holds the lease until `ttl` from now; `None`: somebody else does.
    pub fn acquire(&mut self, now: Time, name: &str, owner: NodeId, ttl: Duration) -> Option<Term> {
        self.held.retain(|_, holder| holder.until > now);
        let until = now + ttl;
        if let Some(holder) = self.held.get_mut(name) {
            let mine = holder.owner == owner;
            if mine {
                holder.until = until.max(holder.until);
            }
            return mine.then_some(holder.term);
        }
        self.last += 1;
        let term = Term::new(self.last);
        self.held.insert(name.to_owned(), Holder { owner, term, until });
        Some(term)
    }

    /// Frees the lease if it is still held under this term.
    pub fn release(&mut self, name: &str, term: Term) {
        if self.held.get(name).is_some_and(|holder| holder.term == term) {
            self.held.remove(name);
        }
    }

    /// Carries a call out; `None` where it has no answer.
    pub fn call(&mut self, now: Time, call: &LeaseCall) -> Option<LeaseAnswer> {
        match call {
            LeaseCall::Acquire { name, owner, ttl } => {
                Some(self.acquire(now, name, *owner, *ttl).map_or(LeaseAnswer::Taken, LeaseAnswer::Held))
            }
            LeaseCall::Release { name, term } => {
                self.release(name, *term);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeAddr;

    fn node(n: u16) -> NodeId {
        NodeId::new(&NodeAddr::new("n", n), 1)
    }

    fn s(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000_000)
    }

    #[test]
    fn one_holds_it_until_it_ends_or_is_given_back() {
        let (mut table, ttl) = (LeaseTable::default(), Duration::from_secs(10));
        let first = table.acquire(s(1), "a", node(1), ttl).unwrap();
        assert_eq!(table.acquire(s(2), "a", node(2), ttl), None);
        assert_eq!(table.acquire(s(5), "a", node(1), ttl), Some(first), "again for its holder, and longer");
        assert_eq!(table.acquire(s(14), "a", node(2), ttl), None);
        let second = table.acquire(s(15), "a", node(2), ttl).unwrap();
        assert!(second > first);
        table.release("a", first);
        assert_eq!(table.acquire(s(16), "a", node(1), ttl), None, "an old term releases nothing");
        table.release("a", second);
        assert!(table.acquire(s(17), "a", node(1), ttl).unwrap() > second);
        assert!(table.acquire(s(17), "b", node(2), ttl).is_some(), "leases are apart by name");
    }
}

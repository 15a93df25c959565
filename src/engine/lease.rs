//! The thread that asks the lease, of a node that has one.
//!
//! Not the helper: an answer that comes too late is none, and a side of a split that gets none ends. So it waits for no callback and no name.

use std::sync::Weak;

use crossbeam::channel::Receiver;

use super::{
    node::{Node, ToNet},
    panics,
};
use crate::{
    Lease,
    proto::lease::{LeaseAnswer, LeaseCall},
};

/// Calls that wait while one is under way: who made those before it has long given them up.
pub const WAITING_MAX: usize = 1;

/// Carries calls out, each under its number, until the node that makes them is gone.
pub fn run(mut lease: Box<dyn Lease>, calls: &Receiver<(u64, LeaseCall)>, node: &Weak<Node>) {
    while let Ok((id, call)) = calls.recv() {
        // What a panic leaves behind is for the lease to know: it is asked again as after any failure.
        let answer = panics::caught(|| carry_out(&mut *lease, &call)).unwrap_or_else(|| {
            tracing::error!(target: "wingbeat::engine", "the lease panicked; it counts as not asked");
            Some(LeaseAnswer::Failed("it panicked".into()))
        });
        if let (Some(answer), Some(node)) = (answer, node.upgrade()) {
            node.network.post(ToNet::Lease(id, answer));
        }
    }
}

fn carry_out(lease: &mut dyn Lease, call: &LeaseCall) -> Option<LeaseAnswer> {
    match call {
        LeaseCall::Acquire { name, owner, ttl } => Some(match lease.acquire(name, *owner, *ttl) {
            Ok(Some(term)) => LeaseAnswer::Held(term),
            Ok(None) => LeaseAnswer::Taken,
            Err(error) => LeaseAnswer::Failed(error.to_string()),
        }),
        LeaseCall::Release { name, term } => {
            if let Err(error) = lease.release(name, *term) {
                tracing::warn!(target: "wingbeat::membership", %error, "the lease was not given back; it ends by itself");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use crossbeam::channel::unbounded;

    use super::*;
    use crate::{LeaseError, NodeId, Term, engine::sys};

    /// Panics the first time.
    struct Shaky(bool);

    impl Lease for Shaky {
        fn acquire(&mut self, _: &str, _: NodeId, _: Duration) -> Result<Option<Term>, LeaseError> {
            assert!(std::mem::replace(&mut self.0, true), "as the test wants");
            Ok(Some(Term::new(7)))
        }

        fn release(&mut self, _: &str, _: Term) -> Result<(), LeaseError> {
            Ok(())
        }
    }

    #[test]
    fn a_lease_that_panics_has_failed_and_is_asked_again() {
        let node = Node::lone(None);
        let (calls, queue) = unbounded();
        let thread = std::thread::spawn({
            let node = Arc::downgrade(&node);
            move || run(Box::new(Shaky(false)), &queue, &node)
        });
        let name = || "l".to_owned();
        for id in 1..3 {
            calls.send((id, LeaseCall::Acquire { name: name(), owner: node.id, ttl: Duration::ZERO })).unwrap();
        }
        calls.send((3, LeaseCall::Release { name: name(), term: Term::new(7) })).unwrap();
        drop(calls);
        let deadline = sys::now() + Duration::from_secs(20);
        let answer = || loop {
            match node.network.take_posted() {
                Some(ToNet::Lease(id, answer)) => return (id, answer),
                Some(_) => panic!("nothing else was posted"),
                None if sys::now() < deadline => std::thread::yield_now(),
                None => panic!("no answer"),
            }
        };
        assert_eq!((answer(), answer()), ((1, LeaseAnswer::Failed("it panicked".into())), (2, LeaseAnswer::Held(Term::new(7)))));
        thread.join().expect("it ends with those who ask");
    }
}

//! A thread that asks the system for the addresses of names, because that can take seconds and the network thread never waits.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    thread,
};

use crossbeam::channel::{Receiver, Sender, bounded};
use mio::Waker;

use crate::NodeAddr;

/// Questions and answers under way. What does not fit is asked again: a dial by its deadline, a datagram by the next one.
const QUEUE: usize = 1024;

/// What a name resolved to, or why it did not.
pub type Resolution = Result<Vec<SocketAddr>, String>;

/// The thread, as its owner sees it. It ends when this is dropped.
#[derive(Debug)]
pub struct Resolver {
    questions: Sender<NodeAddr>,
    answers: Receiver<(NodeAddr, Resolution)>,
}

impl Resolver {
    /// Starts the thread; `waker` is woken for each answer.
    pub fn start(waker: Arc<Waker>) -> io::Result<Self> {
        Self::with(waker, |addr| match (addr.host.as_str(), addr.port).to_socket_addrs() {
            Ok(found) => Ok(found.collect()),
            Err(e) => Err(e.to_string()),
        })
    }

    fn with(waker: Arc<Waker>, lookup: impl Fn(&NodeAddr) -> Resolution + Send + 'static) -> io::Result<Self> {
        let (questions, asked) = bounded::<NodeAddr>(QUEUE);
        let (given, answers) = bounded(QUEUE);
        thread::Builder::new().name("wingbeat-resolve".into()).spawn(move || {
            for addr in asked {
                let found = lookup(&addr);
                // Without a receiver nobody waits for answers any longer.
                if given.send((addr, found)).is_err() || waker.wake().is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers })
    }

    /// Asks for a name, as [`NetEvent::Resolve`](super::NetEvent::Resolve) wants. False if too many questions are open.
    pub fn ask(&self, addr: NodeAddr) -> bool {
        self.questions.try_send(addr).is_ok()
    }

    /// The next answer, for [`Net::resolved`](super::Net::resolved).
    pub fn answer(&self) -> Option<(NodeAddr, Resolution)> {
        self.answers.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mio::{Events, Poll, Token};

    use super::*;

    #[test]
    fn answers_come_back_and_wake_who_waits() {
        let mut poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let here = SocketAddr::from(([127, 0, 0, 1], 9));
        let resolver = Resolver::with(waker, move |addr| if addr.host == "here" { Ok(vec![here]) } else { Err("unknown".into()) }).unwrap();
        for (host, expected) in [("here", Ok(vec![here])), ("there", Err("unknown".to_owned()))] {
            assert!(resolver.ask(NodeAddr::new(host, 9)));
            poll.poll(&mut Events::with_capacity(4), Some(Duration::from_secs(20))).unwrap();
            assert_eq!(resolver.answer(), Some((NodeAddr::new(host, 9), expected)));
        }
        assert_eq!(resolver.answer(), None);
    }

    #[test]
    fn the_systems_resolver_is_asked() {
        let mut poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let resolver = Resolver::start(waker).unwrap();
        assert!(resolver.ask(NodeAddr::new("127.0.0.1", 9)));
        poll.poll(&mut Events::with_capacity(4), Some(Duration::from_secs(20))).unwrap();
        assert_eq!(resolver.answer().unwrap().1, Ok(vec![SocketAddr::from(([127, 0, 0, 1], 9))]));
    }
}

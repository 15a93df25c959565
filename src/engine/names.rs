//! The thread that looks names up.
//!
//! Not the helper: a resolver whose server is gone takes many seconds over each name, and callbacks of users may take as long as they like over
//! anything. It starts with the first name: most nodes know addresses only.

use std::{collections::BTreeSet, io, net::ToSocketAddrs, sync::Arc};

use crossbeam::channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use super::node::{Node, ToNet};
use crate::NodeAddr;

/// A name, and the node that asks for it: the thread keeps none alive while it waits.
type Asked = (Arc<Node>, NodeAddr);

/// The names that a node waits for.
#[derive(Default)]
pub struct Names {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// To the thread, which ends when the node is gone. `None`: it has not started.
    thread: Option<Sender<Asked>>,
    /// Not answered yet.
    waiting: BTreeSet<NodeAddr>,
}

impl Names {
    /// Has a name of that node looked up, unless it waits for that already: one answer serves all who asked, and a server that is gone for long finds
    /// no queue when it is back. Called on the network thread, as a new thread may run on the cores of the one that starts it: those of a worker may
    /// be one.
    pub fn look_up(node: &Arc<Node>, addr: NodeAddr) {
        let mut state = node.names.state.lock();
        if state.waiting.contains(&addr) {
            return;
        }
        match state.thread() {
            Ok(thread) => {
                thread.send((node.clone(), addr.clone())).expect("the thread ends after its sender, which is in hand");
                state.waiting.insert(addr);
            }
            // Who asked asks again, as for any name that is not found.
            Err(error) => node.network.post(ToNet::Resolved(addr, Err(format!("no thread to look it up: {error}")))),
        }
    }
}

impl State {
    fn thread(&mut self) -> io::Result<&Sender<Asked>> {
        if self.thread.is_none() {
            let (give, take) = unbounded();
            // Not joined: it may be in a look-up for long.
            std::thread::Builder::new().name("wingbeat-names".to_owned()).spawn(move || run(&take))?;
            self.thread = Some(give);
        }
        Ok(self.thread.as_ref().expect("it was put there if there was none"))
    }
}

/// Looks names up until nobody can ask for one.
fn run(names: &Receiver<Asked>) {
    while let Ok((node, addr)) = names.recv() {
        let found = (&*addr.host, addr.port).to_socket_addrs();
        let result = found.map(Iterator::collect).map_err(|e| e.to_string());
        // Before the answer: who asks again because of it is heard.
        node.names.state.lock().waiting.remove(&addr);
        node.network.post(ToNet::Resolved(addr, result));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::sys;

    fn asked(node: &Node) -> usize {
        node.names.state.lock().thread.as_ref().map_or(0, Sender::len)
    }

    #[test]
    fn a_name_is_looked_up_once_for_all_who_ask_meanwhile() {
        let node = Node::lone(None);
        let (give, take) = unbounded();
        node.names.state.lock().thread = Some(give);
        let name = |port| NodeAddr::new("localhost", port);
        for _ in 0..3 {
            Names::look_up(&node, name(1));
            Names::look_up(&node, name(2));
        }
        assert_eq!(asked(&node), 2);
        // The thread of this node, for as long as there are names.
        let thread = std::thread::spawn(move || run(&take));
        let (mut answered, deadline) = (vec![], sys::now() + Duration::from_secs(20));
        while answered.len() < 2 {
            assert!(sys::now() < deadline, "answered: {answered:?}");
            match node.network.take_posted() {
                Some(ToNet::Resolved(addr, found)) => answered.push((addr, found.is_ok_and(|found| !found.is_empty()))),
                Some(_) => panic!("nothing else was posted"),
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(answered, [(name(1), true), (name(2), true)]);
        assert!(node.names.state.lock().waiting.is_empty(), "each may be asked for again");
        drop(node);
        thread.join().expect("it ends with the node");
    }
}

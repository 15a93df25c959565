//! Nodes with threads and sockets on loopback, driven by a test.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc, time::Duration};

use crossbeam::channel::Receiver;

use super::{
    driver::told,
    fence::{Fence, Fenced},
    story::Story,
};
use crate::{
    Cluster, Config, Event, NodeId, Time,
    engine::{node::ToWorker, sys},
    proto::node::Command,
};

/// How often events are looked at while time passes.
const LOOK: Duration = Duration::from_millis(5);
/// How long the threads of a node may take to end.
const END: Duration = Duration::from_secs(20);

/// The nodes of a real world.
pub(super) struct Real {
    began: Time,
    fence: Arc<Fence>,
    state: RefCell<State>,
}

struct State {
    /// Where each node listens, once it has started.
    ports: Vec<Option<u16>>,
    names: Vec<(NodeId, usize)>,
    events: Vec<(usize, Receiver<Event>)>,
    story: Story,
}

impl Real {
    pub fn new(nodes: usize) -> Self {
        let state = State { ports: vec![None; nodes], names: vec![], events: vec![], story: Story::default() };
        Self { began: sys::now(), fence: Arc::default(), state: RefCell::new(state) }
    }

    /// Starts a node: on a port that is free, or on the one that it had before.
    #[track_caller]
    pub fn start(&self, index: usize, mut config: Config) -> Cluster {
        let ports = self.state.borrow().ports.clone();
        let at = |port: u16| format!("127.0.0.1:{port}");
        config.node.listen = std::net::SocketAddr::from(([127, 0, 0, 1], ports[index].unwrap_or(0)));
        config.node.advertise = None;
        // The first one has nobody to ask when it starts first, and everybody when it comes back.
        let others = ports.iter().enumerate().filter(|(other, _)| *other != index);
        config.cluster.seeds = others.filter_map(|(_, port)| port.map(at)).collect();
        let fence = self.fence.clone();
        let started = Cluster::builder(config).start_behind(move |net| Fenced::new(net, fence));
        let node = started.unwrap_or_else(|error| panic!("n{index} could not be started: {error}"));
        let mut state = self.state.borrow_mut();
        state.ports[index] = Some(node.addr().port);
        state.names.push((node.id(), index));
        state.events.push((index, node.events()));
        drop(state);
        self.tell(format!("n{index} starts"));
        node
    }

    pub fn tell(&self, line: String) {
        self.state.borrow_mut().story.tell(sys::now().since(self.began), line);
    }

    /// Takes what the nodes have seen into the story.
    fn look(&self) {
        let mut state = self.state.borrow_mut();
        let State { names, events, story, .. } = &mut *state;
        let now = sys::now().since(self.began);
        for (index, events) in events {
            for what in events.try_iter().filter_map(|event| told(&event, names)) {
                story.tell(now, format!("n{index} sees {what}"));
            }
        }
    }

    pub fn run_until(&self, until: Time) {
        loop {
            self.look();
            let left = until.since(sys::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left.min(LOOK));
        }
    }

    pub fn story(&self) -> String {
        self.look();
        self.state.borrow().story.to_string()
    }

    pub fn index_of(&self, id: NodeId) -> Option<usize> {
        self.state.borrow().names.iter().find(|(known, _)| *known == id).map(|(_, index)| *index)
    }

    #[track_caller]
    pub fn kill(&self, index: usize, node: &Cluster) {
        self.look();
        self.tell(format!("n{index} is killed"));
        node.kill();
        assert!(node.shutdown(crate::ShutdownReason::Requested).wait(END).is_some(), "the threads of n{index} did not end within {END:?}");
    }

    /// Has each thread of a node wait inside a turn.
    pub fn pause(&self, index: usize, node: &Cluster, d: Duration) {
        self.tell(format!("n{index} stands still for {d:?}"));
        let until = sys::now() + d;
        let stand_still = move || {
            while sys::now() < until {
                std::thread::park_timeout(until.since(sys::now()));
            }
        };
        let node = node.node();
        for worker in &node.workers {
            worker.post(ToWorker::Run(Box::new(stand_still)));
        }
        let stop = move |id| {
            stand_still();
            Command::Links { id }
        };
        node.command(stop, None);
    }

    /// Nodes in none of the groups form one more.
    pub fn cut(&self, groups: &[&[usize]], nodes: &[Option<Cluster>]) {
        let ports = self.state.borrow().ports.clone();
        let group_of = |index: usize| groups.iter().position(|group| group.contains(&index)).unwrap_or(groups.len());
        let by_port = ports.iter().enumerate().filter_map(|(index, port)| Some(((*port)?, group_of(index))));
        self.fence.set(by_port.collect::<BTreeMap<_, _>>());
        for node in nodes.iter().flatten() {
            node.node().network.bell().ring();
        }
    }

    /// Ends all nodes, whatever they do.
    pub fn end(&self, nodes: &[Option<Cluster>]) {
        nodes.iter().flatten().for_each(Cluster::kill);
        for node in nodes.iter().flatten() {
            let ended = node.shutdown(crate::ShutdownReason::Requested).wait(END).is_some();
            if !ended && !std::thread::panicking() {
                panic!("the threads of {node:?} did not end within {END:?}");
            }
        }
    }
}

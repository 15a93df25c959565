//! What the targets share: a member and a joiner to whom the bytes go.

use std::sync::Arc;

use wingbeat::{
    Config, NodeAddr, NodeId, Time,
    proto::membership::{Identity, JoinRequest, MemberFrame, MemberOutput, Membership, Packed},
};

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

fn addr(port: u16) -> NodeAddr {
    NodeAddr::new("127.0.0.1", port)
}

/// A member that has admitted one other node, which says the bytes.
pub struct Victim {
    machine: Membership,
    other: NodeId,
    group: [u8; 8],
}

impl Victim {
    /// Two members, of which this is the older one.
    pub fn new() -> Self {
        let config = Arc::new(Config::default());
        let mut machine = Membership::new(config.clone(), Identity { addr: addr(1), incarnation: 1 }, 1, at(1));
        machine.start(at(1));
        machine.handle_timeout(at(2));
        let request = JoinRequest {
            addr: addr(2),
            incarnation: 7,
            roles: vec![],
            app_version: String::new(),
            cluster: config.cluster.name.clone(),
            protocol: (1, 1),
            settings: config.must_match(),
        };
        let other = NodeId::new(&addr(2), 7);
        machine.handle_frame(at(3), other, &addr(2), MemberFrame::Join(Box::new(request)));
        machine.handle_timeout(at(4));
        // Its own datagrams name the cluster.
        let sent = std::iter::from_fn(|| machine.poll_output()).find_map(|output| match output {
            MemberOutput::Datagram { bytes, .. } => bytes.get(28..36)?.try_into().ok(),
            _ => None,
        });
        Self { machine, other, group: sent.unwrap_or_default() }
    }

    /// Of a datagram of the other node: header, counter, sender, cluster.
    pub fn envelope(&self) -> Vec<u8> {
        [&b"wb\x01\0"[..], &1u64.to_le_bytes(), &self.other.raw().to_le_bytes(), &self.group].concat()
    }

    /// A datagram comes.
    pub fn datagram(&mut self, bytes: &[u8]) {
        self.machine.handle_datagram(at(5), bytes);
        self.drain();
    }

    /// A frame of the other node comes.
    pub fn frame(&mut self, kind: u8, bytes: &[u8]) {
        let (bytes, (head, body)) = (bytes.to_vec(), parts(bytes));
        let frame = match kind % 4 {
            0 => MemberFrame::Gossip { head, body },
            1 => MemberFrame::Ask { ask: 1, digest: 1, clock: bytes },
            2 => MemberFrame::Datagram { datagram: bytes, blocked: kind > 64 },
            _ => MemberFrame::JoinAccepted { joiner: NodeId::new(&addr(1), 1), head, body },
        };
        self.machine.handle_frame(at(5), self.other, &addr(2), frame);
        self.drain();
        self.is_well();
    }

    /// Its invariants hold.
    pub fn is_well(&self) {
        self.machine.check();
        assert!(self.machine.view().myself().is_some());
    }

    fn drain(&mut self) {
        while self.machine.poll_output().is_some() {}
    }
}

impl Default for Victim {
    fn default() -> Self {
        Self::new()
    }
}

/// Head and elements of a state: the first byte says how long the head is.
fn parts(bytes: &[u8]) -> (Vec<u8>, Packed) {
    let (&head, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (head, body) = rest.split_at(usize::from(head).min(rest.len()));
    (head.to_vec(), body.to_vec().into())
}

/// A node that joins gets this as the state of the cluster, and goes on with it for a while.
pub fn join(state: &[u8]) {
    let mut config = Config::default();
    config.cluster.seeds = vec!["127.0.0.1:1".into()];
    let me = Identity { addr: addr(3), incarnation: 9 };
    let joiner = me.id();
    let mut machine = Membership::new(Arc::new(config), me, 1, at(1));
    machine.start(at(1));
    let (head, body) = parts(state);
    machine.handle_frame(at(1), NodeId::new(&addr(1), 1), &addr(1), MemberFrame::JoinAccepted { joiner, head, body });
    for second in 2..5 {
        machine.handle_timeout(at(second));
        while machine.poll_output().is_some() {}
    }
}

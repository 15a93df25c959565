//! Where datagrams do not get through but links do, datagrams travel in frames.

use std::collections::BTreeMap;

use super::{MemberFrame, Membership, Phase, counters::Count, datagram, datagram::Part, gossip::Whom};
use crate::{NodeId, Time};

/// Among the counters: 1 while datagrams travel in frames because none come.
pub const BLOCKED_NOW: &str = "udp_blocked_now";

/// Gossip intervals without any datagram after which links carry them, if frames come.
const SILENT_ROUNDS: u32 = 5;
/// Members that are asked for a frame before that is decided.
const PROBED: usize = 2;

/// How this node's datagrams travel.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tunnel {
    /// When the last real datagram of a member came.
    datagram: Option<Time>,
    /// When the last frame of a member came.
    frame: Option<Time>,
    /// Nothing comes by datagram, and frames do.
    pub(super) blocked: bool,
    /// Who gets no datagrams, and is answered in frames.
    peers: BTreeMap<NodeId, Time>,
}

impl Tunnel {
    /// A real datagram of a member came: the way is free.
    pub(super) fn take_datagram(&mut self, now: Time) {
        self.datagram = Some(now);
        self.blocked = false;
    }

    pub(super) fn take_frame(&mut self, now: Time) {
        self.frame = Some(now);
    }

    /// Whether what goes to this node goes in a frame.
    pub(super) fn carries(&self, to: NodeId) -> bool {
        self.blocked || self.peers.contains_key(&to)
    }
}

impl Membership {
    /// A datagram that came in a frame.
    pub(super) fn take_tunnelled(&mut self, now: Time, from: NodeId, bytes: &[u8], blocked: bool) {
        if !matches!(datagram::read(bytes), Ok((envelope, _)) if envelope.sender == from) {
            return self.counters.add(Count::FrameMalformed);
        }
        if blocked && self.state.members.contains_key(&from) {
            self.tunnel.peers.insert(from, now);
        } else {
            self.tunnel.peers.remove(&from);
        }
        self.take_datagram(now, bytes, false);
    }

    /// Looks whether datagrams still come, once per heartbeat.
    pub(super) fn watch_tunnel(&mut self, now: Time) {
        if self.phase != Phase::Member || self.state.members.len() < 2 {
            (self.tunnel.datagram, self.tunnel.frame) = (None, None);
            return;
        }
        let interval = self.config.membership.gossip_interval.get();
        let limit = interval * SILENT_ROUNDS;
        self.tunnel.peers.retain(|_, at| now.since(*at) <= limit);
        let since = *self.tunnel.datagram.get_or_insert(now);
        // A real datagram a beat to one, and to all that get none, so that it is noticed when they get through again.
        let mut probed: Vec<NodeId> = self.tunnel.peers.keys().copied().collect();
        if self.tunnel.blocked {
            probed.extend(self.choose(1, Whom::Anyone));
        }
        for to in probed {
            self.send_real(to, &[Part::Mark { digest: 0 }]);
        }
        if self.tunnel.blocked {
            return;
        }
        let silence = now.since(since);
        let framed = self.tunnel.frame.is_some_and(|at| at > since && now.since(at) <= limit);
        if silence >= limit && framed {
            self.tunnel.blocked = true;
            self.counters.add(Count::UdpBlocked);
            let text = format!(
                "udp_blocked: no datagram for {silence:?}, and frames come: gossip and heartbeats go over TCP; open UDP on the port"
            );
            self.warn("W-NET-001", text);
        } else if silence >= interval * (SILENT_ROUNDS - 1) {
            let others: Vec<NodeId> = self.watch.subjects().take(PROBED).collect();
            for id in others {
                if let Some(addr) = self.addr_of(id).cloned() {
                    self.say(addr, MemberFrame::WhoAreYou);
                }
            }
        }
    }
}

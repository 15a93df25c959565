//! A membership that does what the test says.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    NodeAddr, NodeId, Time,
    proto::{
        link::LinkEvent,
        membership::{ClusterView, LinkReport, Member, MemberFrame, MemberInfo, MemberOutput, MemberStatus},
        node::Members,
    },
};

pub struct Script {
    pub view: Arc<ClusterView>,
    pub outputs: VecDeque<MemberOutput>,
    pub drained: bool,
    pub left: Vec<NodeId>,
    pub proven: Option<Time>,
    pub cluster: u64,
    /// Who has shown a sign of life.
    pub signs: Vec<NodeId>,
}

impl Script {
    pub fn new(me: NodeId) -> Self {
        let view = ClusterView { me, members: Default::default(), leader: None, deputies: vec![], converged: true, version: 0 };
        Self {
            view: Arc::new(view),
            outputs: VecDeque::new(),
            drained: false,
            left: vec![],
            proven: Some(Time::MAX),
            cluster: 1,
            signs: vec![],
        }
    }

    pub fn set_members(&mut self, members: Vec<Member>) {
        let version = self.view.version + 1;
        self.view = Arc::new(ClusterView { members: members.into_iter().collect(), version, ..(*self.view).clone() });
        self.outputs.push_back(MemberOutput::View(self.view.clone()));
    }
}

pub fn addr(n: usize) -> NodeAddr {
    NodeAddr::new("localhost", 7301 + n as u16)
}

pub fn id(n: usize) -> NodeId {
    NodeId::new(&addr(n), 1)
}

pub fn member(n: usize, status: MemberStatus) -> Member {
    Member::new(MemberInfo::bare(id(n), addr(n)), status, n as u32 + 1)
}

impl Members for Script {
    fn start(&mut self, _: Time) {}
    fn handle_datagram(&mut self, _: Time, _: &[u8]) {}
    fn handle_frame(&mut self, _: Time, _: NodeId, _: &NodeAddr, _: MemberFrame) {}
    fn handle_sign_of_life(&mut self, _: Time, from: NodeId) {
        self.signs.push(from);
    }
    fn handle_link(&mut self, _: Time, _: &LinkEvent) {}
    fn join(&mut self, _: Time, _: &[NodeAddr]) -> Result<(), String> {
        Err("this node has members already".into())
    }
    fn leave(&mut self, _: Time, node: NodeId) -> Result<(), String> {
        self.left.push(node);
        Ok(())
    }
    fn down(&mut self, _: Time, _: NodeId) -> Result<(), String> {
        Ok(())
    }
    fn set_drained(&mut self, _: Time, drained: bool) {
        self.drained = drained;
    }
    fn handle_timeout(&mut self, _: Time) {}
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
    fn poll_output(&mut self) -> Option<MemberOutput> {
        self.outputs.pop_front()
    }
    fn view(&self) -> &Arc<ClusterView> {
        &self.view
    }
    fn links(&self, _: Time) -> Vec<LinkReport> {
        vec![]
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![]
    }
    fn proven(&self) -> Option<Time> {
        self.proven
    }
    fn cluster(&self) -> u64 {
        self.cluster
    }
    fn lag_bound(&self) -> Duration {
        Duration::ZERO
    }
    fn check(&self) {}
}

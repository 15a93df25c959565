//! Who belongs to the cluster: gossip, life cycle, failure detection, downing.

mod admission;
mod bits;
mod clock;
mod codec;
mod counters;
pub(crate) mod datagram;
mod detector;
mod downing;
mod frame;
mod gossip;
pub(crate) mod idmap;
mod join;
mod leader;
mod leaving;
mod marks;
mod members;
mod monitors;
mod outbox;
mod pack;
mod parts;
mod plea;
mod pool;
mod pooled;
mod proof;
mod publish;
mod reachability;
mod resolve;
mod returns;
mod roster;
mod shown;
mod state;
mod strays;
mod suspicion;
#[cfg(test)]
mod tests;
mod tunnel;
mod version;
mod view;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use downing::Strategy;
pub use downing::exhaustive::{
    DowningCheck, NODES_MAX as DOWNING_CHECK_NODES_MAX, PendingCheck, checks as downing_checks, planted as planted_downing_checks,
};
pub use frame::{JoinRequest, MemberFrame, Packed};
pub use members::Members;
pub(crate) use monitors::by_place;
pub use pool::{Keeper, Pool, Shelves};
pub use tunnel::BLOCKED_NOW;
pub use view::{ClusterView, Event, LinkReport, Member, MemberInfo, MemberStatus, Observers};

use self::{
    admission::Admissions, counters::Counters, gossip::Spread, join::Seeker, leader::Standing, leaving::Farewell, outbox::Outbox,
    plea::Plea, proof::Proof, reachability::Verdict, resolve::Split, returns::Returns, state::Folk, state::State, state::Version,
    strays::Strays, suspicion::Suspicion, tunnel::Tunnel, watch::Watch,
};
use crate::{
    Config, NodeAddr, NodeId, Time,
    proto::{
        lease::{LeaseAnswer, LeaseCall},
        link::LinkEvent,
        rng::Rng,
    },
};

/// Who this node is.
#[derive(Clone, PartialEq, Debug)]
pub struct Identity {
    /// What it advertises.
    pub addr: NodeAddr,
    /// Random, new with each start.
    pub incarnation: u64,
}

impl Identity {
    /// The node's id.
    pub fn id(&self) -> NodeId {
        NodeId::new(&self.addr, self.incarnation)
    }
}

/// Where a frame of membership goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    /// To a known life of a node; dropped if another life answers at its address.
    Node(NodeId),
    /// To whoever answers at the address (a seed).
    Addr(NodeAddr),
}

/// Why a member is gone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Removal {
    /// It left in order and had handed everything off.
    Left,
    /// It was downed. `proven`: its process is known to be gone, so nobody need wait for its right to run to end.
    Downed {
        /// Known to be gone.
        proven: bool,
    },
    /// It was downed by hand, and nobody had held it out of reach for long: a moment ago it may have got the right to run for a whole lease.
    Abrupt,
}

/// Why this node's membership is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It left.
    Left,
    /// It was to leave, and ended before all was handed over: `shutdown.leave_timeout` was over.
    Overdue,
    /// It was downed, by others or by its own resolver.
    Downed(String),
    /// A cluster refused it for good.
    Refused(String),
    /// Its cluster was founded beside another one, whose members are at these addresses.
    Superseded(Vec<NodeAddr>),
}

/// What membership wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberOutput {
    /// Send a datagram, at most `membership.max_datagram` bytes.
    Datagram {
        /// To whom.
        to: NodeAddr,
        /// What.
        bytes: Vec<u8>,
    },
    /// Send a frame over the link to that peer; dial if there is none.
    Frame {
        /// To whom.
        to: Peer,
        /// What.
        frame: MemberFrame,
    },
    /// Look that name up, which is answered by `handle_resolved`.
    Resolve(NodeAddr),
    /// `view` changed.
    View(Arc<ClusterView>),
    /// Ask the lease outside; an `Acquire` is answered by `handle_lease`.
    Lease {
        /// Comes back.
        id: u64,
        /// What.
        call: LeaseCall,
    },
    /// Tell the world.
    Event(Event),
    /// A member is gone for good. Emitted before the `View` that lacks it.
    Removed {
        /// Who.
        node: NodeId,
        /// How.
        how: Removal,
    },
    /// This node's membership is over; entities must stop at once (if downed) and the process should end.
    Ended(Ending),
}

/// The membership machine of one node.
///
/// Its insides are one file per concern; each adds its part of the machine's methods. Every verb ends in `settle`, which
/// derives verdict, leader and convergence from the state, acts on them and publishes what changed.
pub struct Membership {
    config: Arc<Config>,
    me: NodeId,
    info: Arc<MemberInfo>,
    rng: Rng,
    strategy: Strategy,
    phase: Phase,
    state: State,
    verdict: Arc<Verdict>,
    standing: Standing,
    /// State, seen set or phase changed since the last settling.
    dirty: bool,
    /// More than the seen set changed: verdict and leader are derived anew.
    fresh: bool,
    /// Whether the view stands as it was told.
    told: bool,
    /// Of which verdict and standing were derived.
    derived: Arc<Version>,
    derived_at: Time,
    /// When it is derived at the latest what was put off.
    derive_at: Option<Time>,
    pool: Option<Pool>,
    spread: Spread,
    watch: Watch,
    suspicion: Suspicion,
    tunnel: Tunnel,
    strays: Strays,
    seeker: Option<Seeker>,
    admissions: Admissions,
    farewell: Farewell,
    split: Option<Split>,
    returns: Returns,
    proof: Proof,
    plea: Plea,
    unconverged_since: Option<Time>,
    /// Addresses of the removed for as long as their tombstones stand: they are told when they speak.
    former: BTreeMap<NodeId, NodeAddr>,
    view: Arc<ClusterView>,
    /// Members that the view leaves out.
    hidden: BTreeSet<NodeId>,
    /// It was told who had been removed before this node came.
    buried: bool,
    /// Of which members and verdict the view's list was made.
    shown_of: Option<(Arc<Folk>, Arc<Verdict>)>,
    /// Whether the next view shows every observer anew.
    refresh: bool,
    out: Outbox,
    counters: Counters,
}

/// Where this node stands towards a cluster.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Not started.
    Idle,
    /// Looks for a cluster.
    Asking,
    /// Belongs to one.
    Member,
    /// Over.
    Ended,
}

impl Membership {
    /// A machine that has not begun.
    /// A `downing.strategy` that this version does not have is refused by `start`, which then ends the membership.
    pub fn new(config: Arc<Config>, me: Identity, seed: u64, now: Time) -> Self {
        let id = me.id();
        let mut roles = config.cluster.roles.clone();
        roles.sort();
        roles.dedup();
        let info = MemberInfo { id, addr: me.addr, roles: roles.into(), app_version: config.cluster.app_version.as_str().into() };
        let rng = Rng::new(seed).split(0x6d65_6d62);
        let spread = Spread::new(&config);
        let watch = Watch::new(&config);
        let strategy = Strategy::new(&config.downing).unwrap_or(Strategy::None);
        let mut machine = Self {
            config,
            me: id,
            info: Arc::new(info),
            rng,
            strategy,
            phase: Phase::Idle,
            state: State::default(),
            verdict: Arc::default(),
            standing: Standing::default(),
            dirty: false,
            fresh: false,
            told: true,
            derived: Arc::default(),
            derived_at: now,
            derive_at: None,
            pool: None,
            spread,
            watch,
            suspicion: Suspicion::default(),
            tunnel: Tunnel::default(),
            strays: Strays::default(),
            seeker: None,
            admissions: Admissions::default(),
            farewell: Farewell::default(),
            split: None,
            returns: Returns::default(),
            proof: Proof::default(),
            plea: Plea::default(),
            unconverged_since: None,
            former: BTreeMap::new(),
            view: Arc::new(ClusterView {
                me: id,
                members: Members::default(),
                leader: None,
                deputies: vec![],
                converged: false,
                version: 0,
            }),
            hidden: BTreeSet::new(),
            buried: false,
            shown_of: None,
            refresh: false,
            out: Outbox::default(),
            counters: Counters::default(),
        };
        machine.view = Arc::new(machine.snapshot(now, false));
        machine
    }

    /// Shares what it holds with the other machines that have the pool.
    #[must_use]
    pub fn pooled(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Begins: asks the seeds, forms a cluster if this is the first seed, or a singleton cluster without seeds.
    pub fn start(&mut self, now: Time) {
        if self.phase != Phase::Idle {
            return;
        }
        if let Err(why) = Strategy::new(&self.config.downing) {
            return self.end(Ending::Refused(why));
        }
        if !codec::fits(&self.info) {
            return self.end(Ending::Refused(format!(
                "cluster.roles and cluster.app_version: at most {} roles, each text at most {} bytes without control characters",
                codec::ROLES_MAX,
                codec::LABEL_BYTES_MAX
            )));
        }
        self.seek_from_start(now);
        self.settle(now);
    }

    /// Datagrams dropped because nothing that speaks this protocol sends them.
    pub(crate) fn strange_datagrams(&self) -> u64 {
        use counters::Count::{DropKey, DropMagic, DropMalformed, DropTruncated, DropVersion};
        self.counters.sum(&[DropTruncated, DropMagic, DropVersion, DropKey, DropMalformed])
    }

    /// A datagram arrived. Bad ones are counted by reason.
    pub fn handle_datagram(&mut self, now: Time, bytes: &[u8]) {
        if self.awake(now) {
            self.take_datagram(now, bytes, true);
            self.settle(now);
        }
    }

    /// A frame arrived over the link with `from`, which advertises `from_addr`.
    pub fn handle_frame(&mut self, now: Time, from: NodeId, from_addr: &NodeAddr, frame: MemberFrame) {
        if self.awake(now) {
            self.tunnel.take_frame(now);
            self.take_sign_of_life(now, from);
            self.take_frame(now, from, from_addr, frame);
            self.settle(now);
        }
    }

    /// Any frame of a peer is a sign of life (cheap; called per batch of frames, not per frame).
    pub fn handle_sign_of_life(&mut self, now: Time, from: NodeId) {
        if self.awake(now) {
            self.tunnel.take_frame(now);
            self.take_sign_of_life(now, from);
            self.settle(now);
        }
    }

    /// A link changed.
    pub fn handle_link(&mut self, now: Time, event: &LinkEvent) {
        if self.awake(now) {
            self.take_link(now, event);
            self.settle(now);
        }
    }

    /// Joins the cluster of these nodes. A node alone in its cluster gives that up when it is admitted.
    ///
    /// # Errors
    /// If this node belongs to a cluster of two or more, or its membership is over.
    pub fn join(&mut self, now: Time, seeds: &[NodeAddr]) -> Result<(), String> {
        if !self.awake(now) {
            return Err("this node's membership is over: start it again".into());
        }
        self.seek(now, seeds)?;
        self.settle(now);
        Ok(())
    }

    /// A member is to leave in order; this node too.
    ///
    /// # Errors
    /// If there is no such member.
    pub fn leave(&mut self, now: Time, node: NodeId) -> Result<(), String> {
        if !self.awake(now) {
            return Ok(());
        }
        self.begin_leave(node)?;
        self.settle(now);
        Ok(())
    }

    /// A member is declared dead by an operator.
    ///
    /// # Errors
    /// If there is no such member.
    pub fn down(&mut self, now: Time, node: NodeId) -> Result<(), String> {
        if !self.awake(now) {
            return Err("this node's membership is over: ask another member".into());
        }
        self.declare_down(now, node)?;
        self.settle(now);
        Ok(())
    }

    /// A name was looked up, by `Resolve` or to dial it.
    pub fn handle_resolved(&mut self, now: Time, name: &NodeAddr, found: Vec<NodeAddr>) {
        if self.awake(now) {
            self.take_addresses(now, name, found);
            self.settle(now);
        }
    }

    /// The lease answered the `Acquire` of that number.
    pub fn handle_lease(&mut self, now: Time, id: u64, answer: LeaseAnswer) {
        if self.awake(now) {
            self.take_lease(now, id, answer);
            self.settle(now);
        }
    }

    /// An exiting node withholds its seen mark until its hand-offs are done (at most `shutdown.leave_timeout`).
    pub fn set_drained(&mut self, now: Time, drained: bool) {
        if self.awake(now) {
            self.farewell.drained = drained;
            self.give_mark();
            self.settle(now);
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Time) {
        if !self.awake(now) {
            return;
        }
        self.welcome_on(now);
        self.dirty |= self.derive_at.is_some_and(|at| at <= now);
        self.seek_on(now);
        self.watch_on(now);
        self.farewell_on(now);
        self.admission_on(now);
        self.settle(now);
        self.resolve_on(now);
        self.gossip_on(now);
        self.settle(now);
    }

    /// When `handle_timeout` is due next; `None` if nothing is under way.
    pub fn poll_timeout(&self) -> Option<Time> {
        if matches!(self.phase, Phase::Idle | Phase::Ended) {
            return None;
        }
        let dues = [self.seek_due(), self.watch_due(), self.farewell_due(), self.resolve_due(), self.gossip_due(), self.admission_due()];
        let dues = dues.into_iter().chain([self.derive_at, self.welcome_due()]);
        dues.flatten().min()
    }

    /// The next thing to do: removals, views and events first, then what is sent, then the end.
    pub fn poll_output(&mut self) -> Option<MemberOutput> {
        self.out.pop()
    }

    /// The newest snapshot.
    pub fn view(&self) -> &Arc<ClusterView> {
        &self.view
    }

    /// Names the cluster that this node belongs to: drawn where it was founded. 0 while there is none.
    pub fn cluster(&self) -> u64 {
        self.state.uid
    }

    /// Whether this id was a member and is gone for good.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.state.tombstones.contains_key(&node)
    }

    /// What this node observes of others.
    pub fn links(&self, now: Time) -> Vec<LinkReport> {
        self.reports(now)
    }

    /// Counters by stable name (datagrams by kind and discard reason, gossip outcomes, ..), for metrics.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.counters.all();
        all.push((tunnel::BLOCKED_NOW, self.tunnel.blocked.into()));
        all
    }

    /// Upper bound on the time by which the losing side of a split may decide later than the winning one; see `downing`.
    ///
    /// Both sides wait equally long once their picture stands still; the pictures differ by the phase of heartbeats, the width of the
    /// intervals and the rounds of gossip in which the rows of monitors travel (measured in virtual time: one heartbeat with up to 10 nodes,
    /// four with 30). Where a lease decides, a side may have to ask it more than once; see `downing::Waits`.
    pub fn lag_bound(&self) -> Duration {
        match self.strategy {
            Strategy::LeaseMajority => self.waits().apart,
            _ => self.picture_lag(),
        }
    }

    /// By how much two sides begin to see the same split apart at most.
    fn picture_lag(&self) -> Duration {
        4 * self.config.detector.heartbeat_interval.get() + 2 * self.config.membership.gossip_interval.get()
    }

    /// Asserts the invariants.
    pub fn check(&self) {
        let Version { members, tombstones, rows, clock, .. } = &*self.state.version;
        assert!(members.keys().all(|id| !tombstones.contains_key(id)), "a removed member is among the members");
        assert!(members.values().all(|m| m.status < MemberStatus::Removed), "a member has the status removed");
        assert!(clock.iter().all(|(id, _)| members.contains_key(&id)), "the clock names strangers");
        assert!(self.state.seen_count() <= members.len(), "the seen set names strangers");
        assert!(rows.keys().all(|id| members.contains_key(id)), "a row of a stranger");
        assert!(members.values().all(|m| m.status != MemberStatus::Up || m.up_number > 0), "an up member without number");
        assert!(members.len() <= state::MEMBERS_MAX && tombstones.len() <= state::TOMBSTONES_MAX, "bounds");
        if self.phase == Phase::Member {
            assert!(members.contains_key(&self.me), "a member that is not in its own state");
            assert!(self.watch.subjects().all(|id| id != self.me && members.contains_key(&id)), "a stranger is observed");
        }
    }

    /// Derives everything from the state and acts on it until nothing changes.
    fn settle(&mut self, now: Time) {
        let mut begun = false;
        while self.phase == Phase::Member && std::mem::take(&mut self.dirty) {
            // What has begun is seen through: it may have begun with a removal, and have admitted the next life at that address.
            if !begun && self.puts_off(now) {
                self.flush_changes(now);
                break;
            }
            begun = true;
            self.derive();
            if self.meets_its_fate(now) {
                break;
            }
            if self.lead(now) || self.admit_newcomers(now) {
                continue;
            }
            self.give_mark();
            self.assign_watch(now);
            self.follow_split(now);
            self.publish(now);
            self.flush_changes(now);
        }
    }

    /// In a storm of changes nothing is derived of each of them by itself, unless somebody is gone, it is about this node, or
    /// others wait for what it does. Until it is, nobody acts on the state: it has not converged.
    fn puts_off(&mut self, now: Time) -> bool {
        let (old, new) = (&self.derived, &self.state.version);
        let alike = || old.tombstones == new.tombstones && old.status(self.me) == new.status(self.me);
        let waits = || !self.leads() && !self.has_newcomers() && alike();
        let due = self.derived_at + self.config.membership.gossip_interval.get() / 4;
        if !(self.fresh && self.spread.storms() && due > now && !self.suspicion.isolated && waits()) {
            self.derive_at = None;
            self.derived_at = if self.fresh { now } else { self.derived_at };
            return false;
        }
        self.told &= !self.standing.converged;
        self.standing.converged = false;
        self.derive_at = Some(due);
        true
    }

    /// Ring, verdict, leader and convergence of the present state.
    fn derive(&mut self) {
        if !std::mem::take(&mut self.fresh) {
            let converged = leader::converged(&self.state, &self.verdict, false);
            self.told &= converged == self.standing.converged;
            self.standing.converged = converged;
            return;
        }
        self.told = false;
        if let Some(pool) = &self.pool {
            pool.share(&mut self.state.version);
        }
        let old = std::mem::replace(&mut self.derived, Arc::clone(&self.state.version));
        if !Arc::ptr_eq(old.members.roster(), self.state.members.roster()) {
            self.watch.others = true;
            let (former, new) = (&mut self.former, &self.state);
            let gone = roster::gone(old.members.keys().as_slice(), new.members.keys().as_slice());
            former.extend(gone.filter_map(|at| old.members.at(at)).map(|(id, m)| (id, m.addr.clone())));
            former.retain(|id, _| new.tombstones.contains_key(id) && !new.members.contains_key(id));
        }
        let monitors = usize::from(self.config.detector.monitors);
        let court = reachability::Court { version: &self.state.version, me: self.me, rule: self.config.detector.verdict, monitors };
        self.verdict = if self.suspicion.isolated { court.nobody_else() } else { court.judge(self.pool.as_ref(), &self.verdict) };
        self.standing.derive(&self.state, &self.verdict, usize::from(self.config.membership.deputies));
    }

    /// Where a member, or one that was removed, is or was reached.
    fn addr_of(&self, id: NodeId) -> Option<&NodeAddr> {
        // Who was removed in this very step is among those of whom was derived last.
        let member = self.state.members.get(&id).or_else(|| self.derived.members.get(&id));
        member.map(|m| &m.info.addr).or_else(|| self.former.get(&id))
    }

    /// This node changed the state.
    fn touch(&mut self) {
        if self.state.members.contains_key(&self.me) {
            self.state.stamp(self.me);
        }
        self.state.clear_seen();
        self.changed();
    }

    /// The state is another version than before.
    fn changed(&mut self) {
        if self.may_mark() {
            self.state.see(self.me);
        }
        (self.dirty, self.fresh) = (true, true);
        self.spread.changed();
    }

    fn leads(&self) -> bool {
        self.standing.leader == Some(self.me)
    }

    fn status(&self) -> Option<MemberStatus> {
        self.state.status(self.me)
    }

    fn end(&mut self, ending: Ending) {
        if self.phase != Phase::Ended {
            self.phase = Phase::Ended;
            // A lease that it holds runs out by itself: those that it downed may ask for it until then.
            self.out.end(ending);
        }
    }

    fn warn(&mut self, code: &'static str, text: String) {
        self.out.event(Event::Warning { code, text: text.into() });
    }
}

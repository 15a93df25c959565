//! What is done to nodes, and the wait until the cluster is whole again.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use wingbeat::NodeId;

use super::{
    judge::{self, Fault},
    load::Load,
    plan::{Kind, NODES, Step, Whom},
    stage::Stage,
};
use crate::fail::Failure;

/// How long a node may take to hand its shards off and leave.
const LEFT_WITHIN: Duration = Duration::from_secs(40);
/// How long the others may take to remove a node that is silent.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A choppy node is stopped and runs for so long in turns: each time too short to be accused.
const CHOP: Duration = Duration::from_millis(150);
/// Connections from outside of each kind, and the time between two of their bytes.
const STRANGERS: usize = 10;
const TRICKLE_EVERY: Duration = Duration::from_millis(300);
/// Requests whose answers nobody reads.
const UNREAD_REQUESTS: usize = 200;

/// Does it, waits for the cluster to be whole, and says what came of it.
pub fn act(stage: &mut Stage, load: &Load, step: &Step) -> Result<Fault, Failure> {
    let slot = match step.whom {
        Whom::Node(slot) => slot,
        Whom::Coordinator => stage.coordinator().unwrap_or(0),
    };
    let at = load.began.elapsed().as_secs_f64();
    load.fault.fetch_add(1, Ordering::Relaxed);
    let mut scene = Scene { stage, load, slot, entities_lost: 0, untold_before: None, wrong: None };
    match step.kind {
        Kind::Leave => scene.leave(step.lasts)?,
        Kind::Kill => scene.kill(step.lasts)?,
        Kind::Pause => scene.pause(step.lasts)?,
        Kind::Outage => scene.outage(step.lasts)?,
        Kind::Choppy => scene.choppy(step.lasts)?,
        Kind::Trickle => scene.trickle(step.lasts),
        Kind::Joiner => scene.joiner(step.lasts)?,
    }
    let Scene { entities_lost, untold_before, wrong, .. } = scene;
    let healed = match stage.wait_whole(step.kind.heals_within())? {
        Err(_) if stage.is_interrupted() => None,
        came => Some(came.map(|took| took.as_secs_f64())),
    };
    let untold = untold_before.map_or(0, |before| untold(stage, load).saturating_sub(before));
    if let Some(Ok(_)) = healed {
        load.books.lock().risk_ends();
        let mut said = stage.said.lock();
        said.doomed.clear();
        said.stopped.clear();
        drop(said);
        load.fault.fetch_add(1, Ordering::Relaxed);
    }
    let whom = match step.kind {
        Kind::Joiner => "one more node".to_owned(),
        _ if step.whom == Whom::Coordinator => format!("the coordinator, place {slot}"),
        _ => format!("place {slot}"),
    };
    Ok(Fault { at, kind: step.kind, whom, entities_lost, healed, untold, wrong })
}

/// Drops so far that nobody was told of.
fn untold(stage: &mut Stage, load: &Load) -> u64 {
    stage.hear_drops();
    judge::untold(&stage.drops(), &load.books.lock().sums)
}

struct Scene<'a> {
    stage: &'a mut Stage,
    load: &'a Load,
    slot: usize,
    entities_lost: usize,
    /// Drops that nobody was told of before any home was lost.
    untold_before: Option<u64>,
    wrong: Option<String>,
}

impl Scene<'_> {
    fn leave(&mut self, away: Duration) -> Result<(), Failure> {
        self.end_by_leaving(self.slot)?;
        self.stage.pass(away);
        self.stage.start(self.slot)
    }

    fn kill(&mut self, away: Duration) -> Result<(), Failure> {
        self.doom()?;
        if let Some(mut node) = self.stage.take(self.slot) {
            node.kill()?;
        }
        self.stage.pass(away);
        self.stage.start(self.slot)
    }

    fn pause(&mut self, time: Duration) -> Result<(), Failure> {
        self.signal("STOP")?;
        self.stage.pass(time);
        self.signal("CONT")
    }

    fn outage(&mut self, longer: Duration) -> Result<(), Failure> {
        let id = self.doom()?;
        self.signal("STOP")?;
        let began = Instant::now();
        while id.is_some_and(|id| self.stage.cluster.view().member(id).is_some()) {
            if began.elapsed() > REMOVED_WITHIN {
                self.wrong = Some(format!("it was stopped for {} s and not removed", REMOVED_WITHIN.as_secs()));
                break;
            }
            self.stage.pass(LOOK_EVERY);
            if self.stage.is_interrupted() {
                break;
            }
        }
        self.stage.pass(longer);
        self.signal("CONT")
    }

    fn choppy(&mut self, time: Duration) -> Result<(), Failure> {
        if let Some(node) = &self.stage.slots[self.slot] {
            self.stage.said.lock().stopped.insert(node.addr.clone());
        }
        let end = Instant::now() + time;
        while Instant::now() < end && !self.stage.is_interrupted() {
            self.signal("STOP")?;
            self.stage.pass(CHOP);
            self.signal("CONT")?;
            self.stage.pass(CHOP);
        }
        Ok(())
    }

    /// What cannot connect or write any more was cut off by the node, as it should be.
    fn trickle(&mut self, time: Duration) {
        let Some(node) = &self.stage.slots[self.slot] else { return };
        let peer = node.addr.parse::<SocketAddr>().ok();
        let connect = |to: SocketAddr| {
            TcpStream::connect_timeout(&to, Duration::from_secs(1)).and_then(|stream| stream.set_nonblocking(true).map(|()| stream))
        };
        let mut strangers: Vec<TcpStream> =
            peer.into_iter().chain([node.admin]).flat_map(|to| (0..STRANGERS).filter_map(move |_| connect(to).ok())).collect();
        let deaf: Vec<TcpStream> = (0..2).filter_map(|_| connect(node.admin).ok()).collect();
        for mut stream in &deaf {
            let _ = stream.write_all("GET /metrics HTTP/1.1\r\nHost: soak\r\n\r\n".repeat(UNREAD_REQUESTS).as_bytes());
        }
        let end = Instant::now() + time;
        while Instant::now() < end && !self.stage.is_interrupted() {
            strangers.retain_mut(|stream| stream.write(b"G").is_ok());
            self.stage.pass(TRICKLE_EVERY);
        }
    }

    fn joiner(&mut self, stays: Duration) -> Result<(), Failure> {
        self.stage.start(NODES)?;
        match self.stage.wait_whole(Kind::Joiner.heals_within())? {
            Err(_) if self.stage.is_interrupted() => {}
            Err(missing) => self.wrong = Some(format!("it did not join: {missing}")),
            Ok(_) => {
                let addr = self.stage.slots[NODES].as_ref().map(|node| node.addr.clone()).unwrap_or_default();
                let id = self.stage.member(&addr);
                let homes = self.stage.regions.homes().unwrap_or_default();
                if !homes.values().any(|home| home.is_some() && *home == id) {
                    self.wrong = Some("it joined and got no shard".into());
                }
                self.stage.pass(stays);
            }
        }
        self.end_by_leaving(NODES)
    }

    /// Tells the node to leave, and waits until it has ended.
    fn end_by_leaving(&mut self, slot: usize) -> Result<(), Failure> {
        let Some(mut node) = self.stage.take(slot) else { return Ok(()) };
        self.stage.said.lock().doomed.insert(node.addr.clone());
        node.signal("TERM")?;
        let began = Instant::now();
        loop {
            match node.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => self.wrong = Some(format!("it was told to leave and ended with {status}")),
                None if began.elapsed() > LEFT_WITHIN => self.wrong = Some(format!("it did not leave within {} s", LEFT_WITHIN.as_secs())),
                None => {
                    // Also if the soak is interrupted: what it has not handed off yet would be lost with it.
                    thread::park_timeout(LOOK_EVERY);
                    continue;
                }
            }
            return Ok(());
        }
    }

    /// Everything whose home is that node is about to be lost with it; its id.
    fn doom(&mut self) -> Result<Option<NodeId>, Failure> {
        let addr = self.stage.slots[self.slot].as_ref().map(|node| node.addr.clone()).unwrap_or_default();
        let id = self.stage.member(&addr);
        self.untold_before = Some(untold(self.stage, self.load));
        let homes =
            self.stage.regions.homes().map_err(|why| Failure::unreachable("E-CLI-062", format!("no table of shards: {why}"), ""))?;
        // A shard that is on its way may be on its way there.
        self.entities_lost =
            self.load.books.lock().risk_begins(|ty, shard| homes.get(&(ty, shard.0)).is_none_or(|home| home.is_none() || *home == id));
        self.stage.said.lock().doomed.insert(addr);
        Ok(id)
    }

    fn signal(&mut self, name: &str) -> Result<(), Failure> {
        self.stage.slots[self.slot].as_ref().map_or(Ok(()), |node| node.signal(name))
    }
}

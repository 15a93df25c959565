//! Two builds of one protocol in one cluster: an older one, and one with more messages, a field added and another layout of a reply.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use support::PATIENCE;
use wingbeat::{
    AskError, Cluster, Config, DropReason, Ran, ShutdownReason,
    config::{Preset, Workers},
};

/// What was released first.
mod old {
    use serde::{Deserialize, Serialize};
    use wingbeat::{Cx, Entity, Failure, HandedOver, Handoff, messages, wire};

    #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    pub struct Status {
        pub legs: u32,
    }
    wire!(Status = "evolve.status");

    messages! {
        pub enum PlaneMsg for Plane(String) = "evolve.plane" {
            Departed { origin: String },
            GetStatus -> Status,
            GetOrigins -> Vec<String>,
        }
    }

    #[derive(Default)]
    pub struct PlaneState {
        status: Status,
        origins: Vec<String>,
    }

    impl Entity for PlaneState {
        type Type = Plane;

        fn handle(&mut self, msg: PlaneMsg, cx: &mut Cx<'_, Self>) {
            match msg {
                PlaneMsg::Departed(Departed { origin }) => {
                    self.status.legs += 1;
                    self.origins.push(origin);
                }
                PlaneMsg::GetStatus(_, reply) => cx.reply(reply, self.status.clone()),
                PlaneMsg::GetOrigins(_, reply) => cx.reply(reply, self.origins.clone()),
            }
        }

        fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
            cx.hand_over(&self.status)
        }

        fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
            self.status = state.decode()?;
            Ok(())
        }
    }
}

/// What came after: `Refuel` is new, `Departed` has one more field, and `Status` another layout.
mod new {
    use serde::{Deserialize, Serialize};
    use wingbeat::{Added, Cx, Entity, Failure, HandedOver, Handoff, messages, wire};

    #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    pub struct Status {
        pub delay_min: i32,
        pub legs: u64,
    }

    impl From<super::old::Status> for Status {
        fn from(old: super::old::Status) -> Self {
            Self { delay_min: 0, legs: u64::from(old.legs) }
        }
    }

    impl From<Status> for super::old::Status {
        fn from(new: Status) -> Self {
            Self { legs: u32::try_from(new.legs).unwrap_or(u32::MAX) }
        }
    }

    wire!(Status = "evolve.status" @ 2 { 1 => super::old::Status });

    messages! {
        pub enum PlaneMsg for Plane(String) = "evolve.plane" {
            Departed { origin: String, delay_min: Added<i32> },
            GetStatus -> Status,
            GetOrigins -> Vec<String>,
            Refuel { litres: u32 } -> u32,
        }
    }

    #[derive(Default)]
    pub struct PlaneState {
        status: Status,
        origins: Vec<String>,
    }

    impl Entity for PlaneState {
        type Type = Plane;

        fn handle(&mut self, msg: PlaneMsg, cx: &mut Cx<'_, Self>) {
            match msg {
                PlaneMsg::Departed(Departed { origin, delay_min }) => {
                    self.status.legs += 1;
                    self.status.delay_min += delay_min.0;
                    self.origins.push(origin);
                }
                PlaneMsg::GetStatus(_, reply) => cx.reply(reply, self.status.clone()),
                PlaneMsg::GetOrigins(_, reply) => cx.reply(reply, self.origins.clone()),
                PlaneMsg::Refuel(Refuel { litres }, reply) => cx.reply(reply, litres),
            }
        }

        fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
            cx.hand_over(&self.status)
        }

        fn adopted(&mut self, state: HandedOver<'_>, _: &mut Cx<'_, Self>) -> Result<(), Failure> {
            self.status = state.decode()?;
            Ok(())
        }
    }
}

fn config(name: &str) -> Config {
    let mut config = Config::preset(Preset::LocalTest);
    config.cluster.name = format!("{name}-{}", std::process::id());
    config.node.listen = "127.0.0.1:0".parse().unwrap();
    config.node.workers = Workers::Count(1);
    config.sharding.shards = 8;
    config
}

#[test]
fn an_older_sender_is_understood_by_a_newer_host() {
    let home = Cluster::builder(config("old-to-new")).start().unwrap();
    home.host::<new::PlaneState>(wingbeat::HostOptions::new(), |_| Default::default()).unwrap();
    let sender = Cluster::builder(config("old-to-new")).seeds([home.addr().to_string()]).start().unwrap();
    let planes = sender.proxy::<old::Plane>().unwrap();
    planes.wait_ready(PATIENCE).unwrap();
    let plane = planes.get("N1");
    for origin in ["EWR", "LGA"] {
        plane.tell(old::Departed { origin: origin.into() }).unwrap();
    }
    assert_eq!(plane.ask(old::GetOrigins, PATIENCE), Ok(vec!["EWR".into(), "LGA".into()]));
    assert_eq!(plane.ask(old::GetStatus, PATIENCE), Ok(old::Status { legs: 2 }), "in the layout that the asker reads");
    let queue = wingbeat::AskQueue::new(1);
    plane.ask_into(old::GetStatus, PATIENCE, 1, &queue).unwrap();
    let mut answers = vec![];
    queue.wait(&mut answers, PATIENCE);
    assert_eq!(answers[0].result, Ok(old::Status { legs: 2 }));
}

#[test]
fn a_newer_sender_is_understood_by_an_older_host_as_far_as_that_goes() {
    let home = Cluster::builder(config("new-to-old")).start().unwrap();
    let letters = home.dead_letters();
    home.host::<old::PlaneState>(wingbeat::HostOptions::new(), |_| Default::default()).unwrap();
    let sender = Cluster::builder(config("new-to-old")).seeds([home.addr().to_string()]).start().unwrap();
    let planes = sender.proxy::<new::Plane>().unwrap();
    planes.wait_ready(PATIENCE).unwrap();
    let plane = planes.get("N1");
    plane.tell(new::Departed { origin: "EWR".into(), delay_min: 5.into() }).unwrap();
    assert_eq!(plane.ask(new::GetStatus, PATIENCE), Ok(new::Status { delay_min: 0, legs: 1 }), "from the layout that the host writes");
    // What it does not know is a typed error at once, and a dead letter with its bytes; nothing is tried again.
    let began = Instant::now();
    let error = plane.ask(new::Refuel { litres: 7 }, PATIENCE).unwrap_err();
    assert_eq!((&error, error.ran()), (&AskError::Dropped(DropReason::UnknownMessage), Ran::No));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    plane.tell(new::Refuel { litres: 8 }).unwrap();
    for litres in [7, 8] {
        let letter = letters.recv_timeout(PATIENCE).unwrap();
        assert_eq!((&*letter.key, letter.reason), (&b"N1"[..], DropReason::UnknownMessage));
        assert_eq!(letter.bytes.as_deref(), Some(&[3, 0, litres][..]));
    }
    assert!(letters.try_recv().is_err());
    assert_eq!(plane.ask(new::GetOrigins, PATIENCE), Ok(vec!["EWR".into()]), "the entity goes on");
}

#[test]
fn state_moves_from_the_older_build_to_the_newer_one_and_back() {
    let first = Cluster::builder(config("state")).start().unwrap();
    let old = first.host::<old::PlaneState>(wingbeat::HostOptions::new(), |_| Default::default()).unwrap();
    old.wait_ready(PATIENCE).unwrap();
    let keys: Vec<String> = (0..50).map(|n| format!("N{n}")).collect();
    keys.iter().for_each(|key| old.get(key).tell(old::Departed { origin: "EWR".into() }).unwrap());
    assert!(keys.iter().all(|key| old.get(key).ask(old::GetStatus, PATIENCE) == Ok(old::Status { legs: 1 })));
    let second = Cluster::builder(config("state")).seeds([first.addr().to_string()]).start().unwrap();
    let new = second.host::<new::PlaneState>(wingbeat::HostOptions::new(), |_| Default::default()).unwrap();
    new.wait_ready(PATIENCE).unwrap();
    second.wait_members(2, PATIENCE).unwrap();
    // Both send, wherever the entity lives at the moment.
    for key in &keys {
        new.get(key).tell(new::Departed { origin: "LGA".into(), delay_min: 1.into() }).unwrap();
        assert_eq!(new.get(key).ask(new::GetStatus, PATIENCE).map(|s| s.legs), Ok(2), "{key}");
    }
    // The newer build is rolled back: what it has goes to the older one.
    assert!(second.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    for key in &keys {
        assert_eq!(old.get(key).ask(old::GetStatus, PATIENCE), Ok(old::Status { legs: 2 }), "{key}");
    }
    // And rolled out again, this time for good.
    let third = Cluster::builder(config("state")).seeds([first.addr().to_string()]).start().unwrap();
    let new = third.host::<new::PlaneState>(wingbeat::HostOptions::new(), |_| Default::default()).unwrap();
    new.wait_ready(PATIENCE).unwrap();
    third.wait_members(2, PATIENCE).unwrap();
    assert!(first.shutdown(ShutdownReason::Requested).wait(PATIENCE).is_some());
    for key in &keys {
        assert_eq!(new.get(key).ask(new::GetStatus, PATIENCE).map(|s| s.legs), Ok(2), "{key}");
    }
}

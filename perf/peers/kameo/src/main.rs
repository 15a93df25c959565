//! kameo: actors as tasks of tokio, remote ones through libp2p.
//!
//! Tuned: no tracing (a feature that is on by default); unbounded mailboxes, which spare a semaphore per message; the remote payload as one byte
//! string for its MessagePack. The swarm is built by hand as its documentation advises for production: TCP without delay and in plain text, as the
//! others are, instead of Noise and QUIC; no mDNS, one look-up per actor before anything is measured; protocols negotiated without waiting for the
//! other side (`V1Lazy`). Each remote message is a stream of its own: 128 at once are allowed (default 100), and no more, as a connection of
//! yamux ends when it is to carry more than 512. A remote tell that does not wait for its receipt has no limit and runs into that end, so 64 tasks
//! tell with receipts (`send_ack`), each to its own actors.

use std::{convert::Infallible, process::ExitCode, time::Duration};

use futures::StreamExt;
use kameo::{
    mailbox,
    prelude::*,
    remote::{self, messaging},
};
use libp2p::{
    Multiaddr, SwarmBuilder,
    core::upgrade::Version,
    identity::Keypair,
    plaintext,
    swarm::{NetworkBehaviour, SwarmEvent},
    tcp, yamux,
};
use peer_common::{
    ACTORS, Args, Error, Group, Payload, Peer, Printer, Server, alloc::Weighing, handle, local, on_runtime, population, threads,
    until_stdin_ends, version,
};
use serde::{Deserialize, Serialize};

#[global_allocator]
static ALLOCATOR: Weighing = Weighing;

#[derive(Actor, RemoteActor, Default)]
struct Counter {
    notes: u64,
}

#[derive(Serialize, Deserialize)]
struct Note(#[serde(with = "serde_bytes")] [u8; 64]);

#[derive(Serialize, Deserialize)]
struct Echo(#[serde(with = "serde_bytes")] [u8; 64]);

#[derive(Serialize, Deserialize, Reply)]
struct Echoed(#[serde(with = "serde_bytes")] [u8; 64]);

#[derive(Serialize, Deserialize)]
struct Count;

#[remote_message]
impl Message<Note> for Counter {
    type Reply = ();

    async fn handle(&mut self, note: Note, _: &mut Context<Self, ()>) {
        handle(&note.0, &mut self.notes);
    }
}

#[remote_message]
impl Message<Echo> for Counter {
    type Reply = Echoed;

    async fn handle(&mut self, echo: Echo, _: &mut Context<Self, Echoed>) -> Echoed {
        Echoed(echo.0)
    }
}

#[remote_message]
impl Message<Count> for Counter {
    type Reply = u64;

    async fn handle(&mut self, _: Count, _: &mut Context<Self, u64>) -> u64 {
        self.notes
    }
}

#[derive(Clone)]
struct Here(ActorRef<Counter>);

impl Peer for Here {
    async fn tell(&self, payload: Payload) -> Result<(), Error> {
        Ok(self.0.tell(Note(payload.to_bytes())).await?)
    }

    async fn ask(&self, payload: Payload) -> Result<Payload, Error> {
        Payload::from_bytes(&self.0.ask(Echo(payload.to_bytes())).await?.0).ok_or_else(|| "a short answer".into())
    }

    async fn count(&self) -> Result<u64, Error> {
        Ok(self.0.ask(Count).await?)
    }
}

#[derive(Clone)]
struct There(RemoteActorRef<Counter>);

impl Peer for There {
    const TELLERS: usize = 64;

    async fn tell(&self, payload: Payload) -> Result<(), Error> {
        Ok(self.0.tell(&Note(payload.to_bytes())).send_ack().await?)
    }

    async fn ask(&self, payload: Payload) -> Result<Payload, Error> {
        Payload::from_bytes(&self.0.ask(&Echo(payload.to_bytes())).await?.0).ok_or_else(|| "a short answer".into())
    }

    async fn count(&self) -> Result<u64, Error> {
        Ok(self.0.ask(&Count).await?)
    }
}

fn spawn() -> ActorRef<Counter> {
    Counter::spawn_with_mailbox(Counter::default(), mailbox::unbounded())
}

async fn start_all(n: u64) -> Result<Vec<Here>, Error> {
    Ok((0..n).map(|_| Here(spawn())).collect())
}

/// A swarm on loopback that dials `other` if there is one; runs until the process ends. Returns its address.
async fn swarm(other: Option<&str>) -> Result<String, Error> {
    #[derive(NetworkBehaviour)]
    struct Behaviour {
        kameo: remote::Behaviour,
    }
    let plain = |key: &Keypair| Ok::<_, Infallible>(plaintext::Config::new(key));
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), plain, yamux::Config::default)?
        .with_behaviour(|key| Behaviour {
            kameo: remote::Behaviour::new(key.public().to_peer_id(), messaging::Config::default().with_max_concurrent_streams(256)),
        })?
        .with_swarm_config(|config| {
            config.with_substream_upgrade_protocol_override(Version::V1Lazy).with_idle_connection_timeout(Duration::from_secs(600))
        })
        .build();
    swarm.behaviour().kameo.try_init_global()?;
    swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
    let me = *swarm.local_peer_id();
    let address = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            break address;
        }
    };
    if let Some(other) = other {
        let (address, peer) = other.rsplit_once("/p2p/").ok_or("an address without the name of the peer")?;
        let address = address.parse::<Multiaddr>()?;
        // For the registry's routing table; what mDNS would have said.
        swarm.add_peer_address(peer.parse()?, address.clone());
        swarm.dial(address)?;
        while !matches!(swarm.select_next_some().await, SwarmEvent::ConnectionEstablished { .. }) {}
    }
    tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    Ok(format!("{address}/p2p/{me}"))
}

async fn serve() -> Result<(), Error> {
    let address = swarm(None).await?;
    let all: Vec<_> = (0..ACTORS).map(|_| spawn()).collect();
    for (i, actor) in all.iter().enumerate() {
        actor.register(format!("counter-{i}")).await?;
    }
    tokio::task::spawn_blocking(move || until_stdin_ends(&address)).await?
}

async fn remote(printer: Printer, server: Server, window: Duration) -> Result<(), Error> {
    swarm(Some(&server.says)).await?;
    let mut all = Vec::new();
    for i in 0..ACTORS {
        // The first look-up may come before both sides have told each other what they speak.
        let mut found = None;
        for _ in 0..100 {
            found = RemoteActorRef::<Counter>::lookup(format!("counter-{i}")).await?;
            if found.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        all.push(There(found.ok_or_else(|| format!("counter-{i} is not found"))?));
    }
    peer_common::remote(printer, all, window).await
}

fn run(args: &Args) -> Result<(), Error> {
    let (n, window) = (args.threads(), args.window());
    let printer = Printer::new("kameo", version(include_str!("../Cargo.lock"), "kameo")).with(threads(n));
    match args.group {
        Group::Local => on_runtime(n, async move { local(printer, start_all(ACTORS).await?, window).await }),
        Group::Remote => {
            let server = Server::start(n, &[])?;
            on_runtime(n, remote(printer, server, window))
        }
        Group::Population => on_runtime(n, population(printer, start_all)),
        Group::Serve => on_runtime(n, serve()),
    }
}

fn main() -> ExitCode {
    peer_common::main_by_threads(run)
}

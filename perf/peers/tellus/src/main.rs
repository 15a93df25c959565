//! tellus: actors as tasks of tokio, other nodes over QUIC.
//!
//! Tuned: the queue towards a node holds what may be on its way (65,536 messages; by default 8,192, and what does not fit is a dead letter); the
//! payload is one byte string for its postcard codec; mailboxes unbounded, the default; no subscriber for its logs. What cannot be tuned: its
//! traffic between nodes is always encrypted, and every question has a timer.

use std::{
    convert::Infallible,
    net::{SocketAddr, UdpSocket},
    num::NonZeroUsize,
    time::Duration,
};

use peer_common::{
    ACTORS, Args, Error, Group, Payload, Peer, Printer, Server, alloc::Weighing, handle, local, on_runtime, population, threads,
    until_stdin_ends, version,
};
use serde::{Deserialize, Serialize};
use tellus::{
    Actor, ActorContext, ActorRef, ActorSystem, Control, Incoming, ReplyTo, Untimed,
    cluster::{self, BootstrapConfig, EndpointConfig, FixedSeeds, Key, Manifest, receptionist, transport::QuicTransport},
};

#[global_allocator]
static ALLOCATOR: Weighing = Weighing;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
struct Bytes(#[serde(with = "serde_bytes")] [u8; 64]);

#[derive(Serialize, Deserialize)]
enum Message {
    Note(Bytes),
    Echo(Bytes, ReplyTo<Bytes>),
    Count(ReplyTo<u64>),
}

struct Counter;

impl Actor for Counter {
    type Message = Message;
    type Timers = Untimed;
    type State = u64;
    type Error = Infallible;

    fn init(&self, _: &ActorContext<Message>) -> Result<u64, Infallible> {
        Ok(0)
    }

    fn receive(&self, _: &ActorContext<Message>, incoming: Incoming<Message>, mut notes: u64) -> Result<Control<u64>, Infallible> {
        match incoming {
            Incoming::Message(Message::Note(bytes)) => handle(&bytes.0, &mut notes),
            Incoming::Message(Message::Echo(bytes, reply)) => reply.reply(bytes),
            Incoming::Message(Message::Count(reply)) => reply.reply(notes),
            Incoming::Terminated(_) => {}
        }
        Ok(Control::Continue(notes))
    }
}

/// The root of each system: starts counters and says where they are.
struct Root;

#[derive(Serialize, Deserialize)]
struct Start(u64, ReplyTo<Vec<ActorRef<Message>>>);

impl Manifest for Start {
    const MANIFEST: &'static str = "start";
}

impl Actor for Root {
    type Message = Start;
    type Timers = Untimed;
    type State = ();
    type Error = Infallible;

    fn init(&self, _: &ActorContext<Start>) -> Result<(), Infallible> {
        Ok(())
    }

    fn receive(&self, context: &ActorContext<Start>, incoming: Incoming<Start>, (): ()) -> Result<Control<()>, Infallible> {
        if let Incoming::Message(Start(n, reply)) = incoming {
            reply.reply((0..n).map(|_| context.spawn(Counter)).collect());
        }
        Ok(Control::Continue(()))
    }
}

/// Here or there: references do not differ.
#[derive(Clone)]
struct Anywhere(ActorRef<Message>);

impl Peer for Anywhere {
    async fn tell(&self, payload: Payload) -> Result<(), Error> {
        self.0.tell(Message::Note(Bytes(payload.to_bytes())));
        Ok(())
    }

    async fn ask(&self, payload: Payload) -> Result<Payload, Error> {
        let back = self.0.ask(PATIENCE, |reply| Message::Echo(Bytes(payload.to_bytes()), reply)).await?;
        Payload::from_bytes(&back.0).ok_or_else(|| "a short answer".into())
    }

    async fn count(&self) -> Result<u64, Error> {
        Ok(self.0.ask(PATIENCE, Message::Count).await?)
    }
}

async fn started_by(root: &ActorRef<Start>, n: u64) -> Result<Vec<Anywhere>, Error> {
    Ok(root.ask(PATIENCE, |reply| Start(n, reply)).await?.into_iter().map(Anywhere).collect())
}

async fn start_all(n: u64) -> Result<Vec<Anywhere>, Error> {
    let system = ActorSystem::new(Root);
    let all = started_by(system.root(), n).await?;
    // The actors are to live as long as the process.
    std::mem::forget(system);
    Ok(all)
}

async fn join(address: SocketAddr, seeds: Vec<SocketAddr>) -> Result<(), Error> {
    let mut config = EndpointConfig::new(address);
    config.outbound_capacity = NonZeroUsize::new(65_536).ok_or("65,536 is not zero")?;
    cluster::start_endpoint(config, QuicTransport::dev(address)?)?;
    tokio::time::timeout(PATIENCE, cluster::bootstrap(FixedSeeds::new(seeds), BootstrapConfig::new())).await??;
    Ok(())
}

/// Arguments: the own address, then all seeds.
async fn serve(addresses: Vec<SocketAddr>) -> Result<(), Error> {
    let [me, seeds @ ..] = &addresses[..] else { return Err("it needs its address".into()) };
    // Whoever started this process joins at the same time.
    let ready = tokio::task::spawn_blocking(|| until_stdin_ends("here"));
    join(*me, seeds.to_vec()).await?;
    let system = ActorSystem::new(Root);
    cluster::register(&Key::new("root"), system.root())?;
    ready.await?
}

async fn remote(printer: Printer, me: SocketAddr, other: SocketAddr, window: Duration) -> Result<(), Error> {
    join(me, vec![me, other]).await?;
    let key = Key::<Start>::new("root");
    let root = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(root) = receptionist::lookup_at(&key, other)?.into_iter().next() {
                return Ok::<_, Error>(root);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await??;
    let all = started_by(&root, ACTORS).await?;
    peer_common::remote(printer, all, window).await
}

fn run(args: &Args) -> Result<(), Error> {
    let (n, window) = (args.threads(), args.window());
    let printer = Printer::new("tellus", version(include_str!("../Cargo.lock"), "tellus")).with(threads(n));
    match args.group {
        Group::Local => on_runtime(n, async move { local(printer, start_all(ACTORS).await?, window).await }),
        Group::Remote => {
            // Two ports that are free a moment before they are used: an endpoint has to know its own and the seeds' in advance.
            let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
            let [me, other] = [sockets[0].local_addr()?, sockets[1].local_addr()?];
            drop(sockets);
            let _server = Server::start(n, &[&other.to_string(), &me.to_string(), &other.to_string()])?;
            on_runtime(n, remote(printer, me, other, window))
        }
        Group::Population => on_runtime(n, population(printer, start_all)),
        Group::Serve => {
            let addresses = args.rest.iter().map(|address| address.parse()).collect::<Result<Vec<_>, _>>()?;
            on_runtime(n, serve(addresses))
        }
    }
}

fn main() -> std::process::ExitCode {
    peer_common::main_by_threads(run)
}

//! coerce: actors as tasks of tokio, other nodes over TCP with protobuf.
//!
//! Tuned: without metrics and API (features that are off by default); messages and answers written by hand as bytes, not as JSON; actors of the
//! other process reached by a remote reference each, which is faster than its sharding (that sends questions only, through one host actor). It
//! never sets TCP_NODELAY and keeps no order between remote messages, so the run of a remote tell ends when the counts add up.

use std::time::Duration;

use async_trait::async_trait;
use coerce::{
    actor::{
        Actor, ActorId, IntoActorId, LocalActorRef,
        context::ActorContext,
        message::{Envelope, Handler, Message, MessageUnwrapErr, MessageWrapErr},
        new_actor_id,
        system::ActorSystem,
    },
    remote::{actor_ref::RemoteActorRef, system::RemoteActorSystem},
};
use peer_common::{
    ACTORS, Args, Error, Group, Payload, Peer, Printer, Server, alloc::Weighing, handle, local, on_runtime, population, runtime, threads,
    until_stdin_ends, version,
};

#[global_allocator]
static ALLOCATOR: Weighing = Weighing;

struct Counter {
    notes: u64,
}

impl Actor for Counter {}

struct Note([u8; 64]);
struct Echo([u8; 64]);
struct Count;

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], MessageUnwrapErr> {
    bytes.try_into().map_err(|_| MessageUnwrapErr::DeserializationErr)
}

impl Message for Note {
    type Result = ();

    fn as_bytes(&self) -> Result<Vec<u8>, MessageWrapErr> {
        Ok(self.0.to_vec())
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<Self, MessageUnwrapErr> {
        fixed(&bytes).map(Self)
    }

    fn read_remote_result(_: Vec<u8>) -> Result<(), MessageUnwrapErr> {
        Ok(())
    }

    fn write_remote_result((): ()) -> Result<Vec<u8>, MessageWrapErr> {
        Ok(vec![])
    }
}

impl Message for Echo {
    type Result = [u8; 64];

    fn as_bytes(&self) -> Result<Vec<u8>, MessageWrapErr> {
        Ok(self.0.to_vec())
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<Self, MessageUnwrapErr> {
        fixed(&bytes).map(Self)
    }

    fn read_remote_result(bytes: Vec<u8>) -> Result<[u8; 64], MessageUnwrapErr> {
        fixed(&bytes)
    }

    fn write_remote_result(back: [u8; 64]) -> Result<Vec<u8>, MessageWrapErr> {
        Ok(back.to_vec())
    }
}

impl Message for Count {
    type Result = u64;

    fn as_bytes(&self) -> Result<Vec<u8>, MessageWrapErr> {
        Ok(vec![])
    }

    fn from_bytes(_: Vec<u8>) -> Result<Self, MessageUnwrapErr> {
        Ok(Self)
    }

    fn read_remote_result(bytes: Vec<u8>) -> Result<u64, MessageUnwrapErr> {
        fixed(&bytes).map(u64::from_le_bytes)
    }

    fn write_remote_result(count: u64) -> Result<Vec<u8>, MessageWrapErr> {
        Ok(count.to_le_bytes().to_vec())
    }
}

#[async_trait]
impl Handler<Note> for Counter {
    async fn handle(&mut self, note: Note, _: &mut ActorContext) {
        handle(&note.0, &mut self.notes);
    }
}

#[async_trait]
impl Handler<Echo> for Counter {
    async fn handle(&mut self, echo: Echo, _: &mut ActorContext) -> [u8; 64] {
        echo.0
    }
}

#[async_trait]
impl Handler<Count> for Counter {
    async fn handle(&mut self, _: Count, _: &mut ActorContext) -> u64 {
        self.notes
    }
}

fn text(error: impl std::fmt::Debug) -> Error {
    format!("{error:?}").into()
}

#[derive(Clone)]
struct Here(LocalActorRef<Counter>);

impl Peer for Here {
    async fn tell(&self, payload: Payload) -> Result<(), Error> {
        self.0.notify(Note(payload.to_bytes())).map_err(text)
    }

    async fn ask(&self, payload: Payload) -> Result<Payload, Error> {
        let back = self.0.send(Echo(payload.to_bytes())).await.map_err(text)?;
        Payload::from_bytes(&back).ok_or_else(|| "a short answer".into())
    }

    async fn count(&self) -> Result<u64, Error> {
        self.0.send(Count).await.map_err(text)
    }
}

#[derive(Clone)]
struct There(RemoteActorRef<Counter>);

impl There {
    async fn send<M: Message>(&self, message: M) -> Result<M::Result, Error>
    where
        Counter: Handler<M>,
    {
        self.0.send(Envelope::<M>::Remote(message.as_bytes().map_err(text)?)).await.map_err(text)
    }
}

impl Peer for There {
    const ORDERED: bool = false;

    async fn tell(&self, payload: Payload) -> Result<(), Error> {
        self.0.notify(Envelope::<Note>::Remote(payload.to_bytes().to_vec())).await.map_err(text)
    }

    async fn ask(&self, payload: Payload) -> Result<Payload, Error> {
        Payload::from_bytes(&self.send(Echo(payload.to_bytes())).await?).ok_or_else(|| "a short answer".into())
    }

    async fn count(&self) -> Result<u64, Error> {
        self.send(Count).await
    }
}

async fn start_all(n: u64) -> Result<Vec<Here>, Error> {
    let system = ActorSystem::new();
    let mut all = vec![];
    for _ in 0..n {
        // Does not wait for the actor's start, so that many start at once.
        all.push(Here(
            system.new_actor_deferred(new_actor_id(), Counter { notes: 0 }, coerce::actor::scheduler::ActorType::Anonymous).await,
        ));
    }
    Ok(all)
}

const SERVER: u64 = 1;
const CLIENT: u64 = 2;

fn name(i: u64) -> ActorId {
    format!("counter-{i}").into_actor_id()
}

/// A node on a port that was free a moment ago: it does not say which it got.
async fn node(id: u64, seed: Option<&str>) -> Result<(RemoteActorSystem, String), Error> {
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let system = RemoteActorSystem::builder()
        .with_actor_system(ActorSystem::new())
        .with_id(id)
        .with_tag(format!("node-{id}"))
        .with_handlers(|handlers| {
            handlers.with_handler::<Counter, Note>("Note").with_handler::<Counter, Echo>("Echo").with_handler::<Counter, Count>("Count")
        })
        .build()
        .await;
    let mut worker = system.clone().cluster_worker().listen_addr(&address);
    if let Some(seed) = seed {
        worker = worker.with_seed_addr(seed);
    }
    // The listener lives as long as the process.
    std::mem::forget(worker.start().await);
    Ok((system, address))
}

async fn serve(system: RemoteActorSystem, address: String) -> Result<(), Error> {
    let mut all = vec![];
    for i in 0..ACTORS {
        let actor = system.actor_system().new_actor(name(i), Counter { notes: 0 }, coerce::actor::scheduler::ActorType::Tracked).await;
        all.push(actor.map_err(text)?);
    }
    tokio::task::spawn_blocking(move || until_stdin_ends(&address)).await?
}

async fn remote(printer: Printer, system: RemoteActorSystem, window: Duration) -> Result<(), Error> {
    let all = (0..ACTORS).map(|i| There(RemoteActorRef::new(name(i), SERVER, system.clone()))).collect();
    peer_common::remote(printer, all, window).await
}

fn run(args: &Args) -> Result<(), Error> {
    let (n, window) = (args.threads(), args.window());
    let printer = Printer::new("coerce", version(include_str!("../Cargo.lock"), "coerce")).with(threads(n));
    match args.group {
        Group::Local => on_runtime(n, async move { local(printer, start_all(ACTORS).await?, window).await }),
        Group::Remote => {
            let server = Server::start(n, &[])?;
            // The start of a node is no future that a task could run.
            runtime(n)?.block_on(async {
                let (system, _) = node(CLIENT, Some(&server.says)).await?;
                tokio::spawn(remote(printer, system, window)).await?
            })
        }
        Group::Population => on_runtime(n, population(printer, start_all)),
        Group::Serve => runtime(n)?.block_on(async {
            let (system, address) = node(SERVER, None).await?;
            tokio::spawn(serve(system, address)).await?
        }),
    }
}

fn main() -> std::process::ExitCode {
    peer_common::main_by_threads(run)
}

//! ractor, with ractor_cluster for the other process.
//!
//! Tuned: without the propagation of spans, a default feature that costs an allocation per message; the payload is written by hand
//! (`BytesConvertable`) instead of by prost or serde; no encryption, as with the others. The cluster sets TCP_NODELAY itself. Actors of the other
//! process are found as members of a process group and are remote actors of the session. Mailboxes are always unbounded.

use std::time::Duration;

use peer_common::{
    ACTORS, Args, Error, Group, Payload, Peer, Printer, Server, alloc::Weighing, handle, local, on_runtime, population, threads,
    until_stdin_ends, version,
};
use ractor::{Actor, ActorProcessingErr, ActorRef, BytesConvertable, RpcReplyPort, pg, rpc::CallResult};
use ractor_cluster::{NodeServer, NodeServerMessage, RactorClusterMessage, client_connect};

#[global_allocator]
static ALLOCATOR: Weighing = Weighing;

struct Bytes([u8; 64]);

impl BytesConvertable for Bytes {
    fn into_bytes(self) -> Vec<u8> {
        self.0.to_vec()
    }

    fn from_bytes(bytes: Vec<u8>) -> Self {
        let mut all = [0; 64];
        all.copy_from_slice(&bytes);
        Self(all)
    }
}

#[derive(RactorClusterMessage)]
enum Message {
    Note(Bytes),
    #[rpc]
    Echo(Bytes, RpcReplyPort<Bytes>),
    #[rpc]
    Count(RpcReplyPort<u64>),
}

struct Counter;

impl Actor for Counter {
    type Msg = Message;
    type State = u64;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Message>, (): ()) -> Result<u64, ActorProcessingErr> {
        Ok(0)
    }

    async fn handle(&self, _: ActorRef<Message>, message: Message, notes: &mut u64) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Note(bytes) => handle(&bytes.0, notes),
            Message::Echo(bytes, reply) => reply.send(bytes)?,
            Message::Count(reply) => reply.send(*notes)?,
        }
        Ok(())
    }
}

/// Here or there: ractor's references do not differ.
#[derive(Clone)]
struct Anywhere(ActorRef<Message>);

fn answer<T>(result: CallResult<T>) -> Result<T, Error> {
    match result {
        CallResult::Success(answer) => Ok(answer),
        CallResult::Timeout => Err("no answer in time".into()),
        CallResult::SenderError => Err("the actor gave no answer".into()),
    }
}

impl Peer for Anywhere {
    async fn tell(&self, payload: Payload) -> Result<(), Error> {
        self.0.cast(Message::Note(Bytes(payload.to_bytes()))).map_err(|e| e.to_string().into())
    }

    async fn ask(&self, payload: Payload) -> Result<Payload, Error> {
        let result = self.0.call(|reply| Message::Echo(Bytes(payload.to_bytes()), reply), None).await.map_err(|e| e.to_string())?;
        Payload::from_bytes(&answer(result)?.0).ok_or_else(|| "a short answer".into())
    }

    async fn count(&self) -> Result<u64, Error> {
        answer(self.0.call(Message::Count, None).await.map_err(|e| e.to_string())?)
    }
}

async fn start_all(n: u64) -> Result<Vec<Anywhere>, Error> {
    let mut all = Vec::new();
    for _ in 0..n {
        // `spawn_instant` does not wait for the actor's start, so that many start at once.
        let (actor, _) = ractor::ActorRuntime::spawn_instant(None, Counter, ()).map_err(|e| e.to_string())?;
        all.push(Anywhere(actor));
    }
    Ok(all)
}

const GROUP: &str = "counters";

async fn node(name: &str, port: u16) -> Result<ActorRef<NodeServerMessage>, Error> {
    let server =
        NodeServer::new(port, "cookie".into(), name.into(), "localhost".into(), None, None).with_listen_addr([127, 0, 0, 1].into());
    let (node, _) = Actor::spawn(None, server, ()).await.map_err(|e| e.to_string())?;
    Ok(node)
}

async fn serve() -> Result<(), Error> {
    // A port that was free a moment ago: a node does not say which it got.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let all = start_all(ACTORS).await?;
    pg::join(GROUP.into(), all.iter().map(|actor| actor.0.get_cell()).collect());
    let _node = node("server", port).await?;
    tokio::task::spawn_blocking(move || until_stdin_ends(&port.to_string())).await?
}

async fn remote(printer: Printer, server: Server, window: Duration) -> Result<(), Error> {
    let node = node("client", 0).await?;
    client_connect(&node, format!("127.0.0.1:{}", server.says)).await?;
    let mut members = vec![];
    for _ in 0..500 {
        members = pg::get_members(&GROUP.into());
        if members.len() as u64 == ACTORS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if members.len() as u64 != ACTORS {
        return Err(format!("{} of {ACTORS} actors of the other process are here", members.len()).into());
    }
    peer_common::remote(printer, members.into_iter().map(|cell| Anywhere(cell.into())).collect(), window).await
}

fn run(args: &Args) -> Result<(), Error> {
    let (n, window) = (args.threads(), args.window());
    let printer = Printer::new("ractor", version(include_str!("../Cargo.lock"), "ractor")).with(threads(n));
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

fn main() -> std::process::ExitCode {
    peer_common::main_by_threads(run)
}

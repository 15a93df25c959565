//! Rooms are topics, people are entities, and who is here is known to a singleton: `cargo run --example chat`.
//!
//! # What is promised
//!
//! Nobody hears a line twice, and what one speaker's node publishes is heard in the order in which it was said, whether nodes join, leave or are
//! killed in the middle of it: a topic is at most once, and a person who enters a room that they are in already stays in it once. Who is in the
//! room hears what is said from then on, as long as links have room.
//!
//! Not promised: a line that is said while its speaker's or its listener's node dies may be lost. A person whose node died, and one whose shard
//! moved, has forgotten what they had heard and is in no room until they enter again; the directory forgets its names with its node.

#![allow(missing_docs, reason = "an example explains itself")]

use std::{
    collections::BTreeSet,
    error::Error,
    io::Write,
    time::{Duration, Instant},
};

use wingbeat::*;

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Line {
    pub from: String,
    pub text: String,
}
wire!(Line = "example.line");

messages! {
    pub enum PersonMsg for Person(String) = "example.person" {
        /// Hears the room from now on. Answers once that is so.
        Enter -> bool,
        Leave -> bool,
        /// A line of the room.
        Line(Line),
        Heard -> Vec<String>,
    }
}
messages! {
    pub enum DirectoryMsg for Directory(Singleton) = "example.directory" {
        /// False if somebody of that name is here already.
        Register { name: String } -> bool,
        Everybody -> Vec<String>,
    }
}

#[derive(Default)]
struct PersonState {
    heard: Vec<String>,
}

impl Entity for PersonState {
    type Type = Person;

    fn handle(&mut self, msg: PersonMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            PersonMsg::Enter(Enter, reply) => {
                cx.subscribe(&cx.topic::<Line>("lounge"));
                cx.reply(reply, true);
            }
            PersonMsg::Leave(Leave, reply) => {
                cx.unsubscribe(&cx.topic::<Line>("lounge"));
                cx.reply(reply, true);
            }
            PersonMsg::Line(line) if line.from != *cx.id() => self.heard.push(format!("{}: {}", line.from, line.text)),
            PersonMsg::Line(_) => {}
            PersonMsg::Heard(Heard, reply) => cx.reply(reply, self.heard.clone()),
        }
    }
}

#[derive(Default)]
struct DirectoryState(BTreeSet<String>);

impl Entity for DirectoryState {
    type Type = Directory;

    fn handle(&mut self, msg: DirectoryMsg, cx: &mut Cx<'_, Self>) {
        match msg {
            DirectoryMsg::Register(Register { name }, reply) => cx.reply(reply, self.0.insert(name)),
            DirectoryMsg::Everybody(Everybody, reply) => cx.reply(reply, self.0.iter().cloned().collect()),
        }
    }
}

const LIMIT: Duration = Duration::from_secs(30);

struct Node {
    cluster: Cluster,
    people: Region<Person>,
    directory: EntityRef<Directory>,
}

/// Has people and their directory run on that node.
pub fn host(node: &Cluster) -> Result<(Region<Person>, EntityRef<Directory>), RegisterError> {
    let people = node.host::<PersonState>(HostOptions::new().shards(16), |_| PersonState::default())?;
    let directory = node.singleton::<DirectoryState>(HostOptions::new(), DirectoryState::default)?;
    Ok((people, directory))
}

fn join(seed: Option<&Node>) -> Result<Node, Box<dyn Error>> {
    let seeds = seed.map(|first| first.cluster.addr().to_string());
    let cluster = Cluster::builder("chat").listen("127.0.0.1:0".parse()?).seeds(seeds).start()?;
    let (people, directory) = host(&cluster)?;
    people.wait_ready(LIMIT)?;
    Ok(Node { cluster, people, directory })
}

/// Everything `main` does: three nodes, each with a user of its own who talks.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let first = join(None)?;
    let nodes = [join(Some(&first))?, join(Some(&first))?, first];
    for node in &nodes {
        node.cluster.wait_members(3, LIMIT)?;
    }
    let names = ["ann", "bob", "cleo"];
    for (node, name) in nodes.iter().zip(names) {
        let free = node.directory.ask(Register { name: name.into() }, LIMIT)?;
        let twice = node.directory.ask(Register { name: name.into() }, LIMIT)?;
        node.people.get(name).ask(Enter, LIMIT)?;
        writeln!(out, "{name} is registered: {free}, and again: {twice}")?;
    }
    writeln!(out, "here are {}", nodes[1].directory.ask(Everybody, LIMIT)?.join(", "))?;
    let say = |speaker: usize, text: &str, listeners: &[usize]| -> Result<(), Box<dyn Error>> {
        nodes[speaker].cluster.topic("lounge").publish(&Line { from: names[speaker].into(), text: text.into() })?;
        // A topic promises no order between speakers, so each waits until the others have heard.
        let said = Instant::now();
        for listener in listeners {
            while nodes[0].people.get(names[*listener]).ask(Heard, LIMIT)?.last().is_none_or(|last| !last.ends_with(text)) {
                // Lines may be lost, and who waits for one that is must not wait for ever.
                if said.elapsed() > LIMIT {
                    return Err(format!("{} has not heard {text:?} within {} s", names[*listener], LIMIT.as_secs()).into());
                }
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
        Ok(())
    };
    say(0, "hello", &[1, 2])?;
    say(1, "hi ann", &[0, 2])?;
    nodes[2].people.get("cleo").ask(Leave, LIMIT)?;
    say(0, "has cleo gone?", &[1])?;
    say(1, "yes", &[0])?;
    for name in names {
        writeln!(out, "{name} has heard {:?}", nodes[0].people.get(name).ask(Heard, LIMIT)?)?;
    }
    Ok(())
}

#[allow(dead_code, reason = "a test calls `run` alone")]
fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

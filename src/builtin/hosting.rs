//! Hosts the built-in types on a node and puts them on its HTTP surface.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Operation, Refused,
    aircraft::{self, Aircraft},
    body::Object,
    counter::{self, Counter},
    probe::{self, Probe},
    register::{self, Register},
};
use crate::{
    Cluster, Cx, Entity, Failure, HandedOver, Handoff, HostOptions, KeyOf, Region, RegisterError, ReplyTag,
    admin::{EntityCall, EntityOutcome, model::EpochNumber},
    api::surface::{Asked, JsonReply, Operations, send},
    messages, wire,
};

/// What an entity answers: the result, already in JSON, and where it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// A JSON object.
    #[serde(with = "serde_bytes")]
    pub result: Vec<u8>,
    /// `host:port:incarnation` of the home.
    pub served_by: Arc<str>,
    /// The shard's epoch there.
    pub epoch: u64,
}

wire!(
    Answer = "wingbeat.builtin.answer",
    Aircraft = "wingbeat.builtin.aircraft",
    Counter = "wingbeat.builtin.counter",
    Probe = "wingbeat.builtin.probe",
    Register = "wingbeat.builtin.register"
);

impl JsonReply for Answer {
    fn into_outcome(self, _call: &Asked) -> EntityOutcome {
        let Self { result, served_by, epoch } = self;
        let mut json = Vec::with_capacity(result.len() + served_by.len() + 64);
        json.extend_from_slice(b"{\"result\":");
        json.extend_from_slice(&result);
        json.extend_from_slice(b",\"served_by\":\"");
        json.extend_from_slice(served_by.as_bytes());
        json.extend_from_slice(b"\",\"epoch\":");
        // A number, or above 2^53 its hex digits in quotes: it always has a JSON form.
        serde_json::to_writer(&mut json, &EpochNumber(epoch)).unwrap_or_default();
        json.push(b'}');
        EntityOutcome::Answer { json }
    }
}

/// A state that is hosted: what it does, without knowing of nodes.
trait State: Default {
    type Op;
    fn apply(&mut self, op: Self::Op) -> Result<Vec<u8>, Refused>;
}

/// A state and where it runs.
struct Hosted<S> {
    state: S,
    served_by: Arc<str>,
}

impl<S: State> Hosted<S> {
    fn new() -> Self {
        Self { state: S::default(), served_by: Arc::from("") }
    }

    fn settle(&mut self, cx: &Cx<'_, Self>)
    where
        Self: Entity,
    {
        self.served_by = format!("{}:{:016x}", cx.node_addr(), cx.node_id().incarnation()).into();
    }

    fn run(&mut self, op: S::Op, reply: ReplyTag<Answer>, cx: &mut Cx<'_, Self>)
    where
        Self: Entity,
    {
        match self.state.apply(op) {
            Ok(result) => cx.reply(reply, Answer { result, served_by: self.served_by.clone(), epoch: cx.epoch().get() }),
            Err(refused) => cx.reject(reply, refused.to_string()),
        }
    }
}

/// Ties a state to its protocol: one message, the operation.
macro_rules! hosted {
    ($state:ident, $op:path, $tag:ident, $msg:ident, $name:literal) => {
        messages! {
            /// An operation of the type.
            pub enum $msg for $tag(String) = $name { Run($op) -> Answer }
        }

        impl State for $state {
            type Op = $op;
            fn apply(&mut self, op: Self::Op) -> Result<Vec<u8>, Refused> {
                self.apply(op)
            }
        }

        impl Entity for Hosted<$state> {
            type Type = $tag;

            fn started(&mut self, cx: &mut Cx<'_, Self>) {
                self.settle(cx);
            }

            fn handle(&mut self, msg: $msg, cx: &mut Cx<'_, Self>) {
                let $msg::Run(op, reply) = msg;
                self.run(op, reply, cx);
            }

            fn handoff(&mut self, cx: &mut Cx<'_, Self>) -> Result<Handoff, Failure> {
                cx.hand_over(&self.state)
            }

            fn adopted(&mut self, state: HandedOver<'_>, _cx: &mut Cx<'_, Self>) -> Result<(), Failure> {
                self.state = state.decode()?;
                Ok(())
            }
        }
    };
}

hosted!(Aircraft, aircraft::Op, AircraftType, AircraftMsg, "aircraft");
hosted!(Counter, counter::Op, CounterType, CounterMsg, "counter");
hosted!(Probe, probe::Op, ProbeType, ProbeMsg, "probe");
hosted!(Register, register::Op, RegisterType, RegisterMsg, "register");

/// The bridge from JSON to the messages of one type.
struct Bridge<T: crate::EntityType> {
    region: Region<T>,
    names: &'static [&'static str],
    send: fn(&Region<T>, String, Operation, &EntityCall<'_>, Done),
}

type Done = Box<dyn FnOnce(EntityOutcome) + Send>;

impl<T: crate::EntityType<Key = String>> Operations for Bridge<T> {
    fn names(&self) -> &'static [&'static str] {
        self.names
    }

    fn call(&self, call: EntityCall<'_>, done: Done) {
        let wrong = |why: String| EntityOutcome::wrong_body(call.ty, call.op, &why);
        let body = match serde_json::from_slice(call.body) {
            Ok(Object(body)) => body,
            Err(error) => return done(wrong(error.to_string())),
        };
        match Operation::parse(call.ty, call.key, call.op, &body) {
            Ok(operation) => (self.send)(&self.region, call.key.to_owned(), operation, &call, done),
            Err(error) => done(wrong(error.to_string())),
        }
    }
}

/// Hosts one type and puts it on the HTTP surface.
macro_rules! host {
    ($cluster:expr, $state:ident, $ops:path, $tag:ident) => {{
        let region = $cluster.host::<Hosted<$state>>(HostOptions::new(), |_: &KeyOf<Hosted<$state>>| Hosted::new())?;
        let bridge = Bridge::<$tag> {
            region,
            names: $ops,
            send: |region, key, operation, call, done| match operation {
                Operation::$state(op) => send(region, key, op, call, done),
                // The operation was made for the type of this very call.
                _ => done(EntityOutcome::wrong_body(call.ty, call.op, "an operation of another type")),
            },
        };
        $cluster.expose::<$tag>(Arc::new(bridge));
    }};
}

/// Hosts all built-in types on this node.
///
/// # Errors
/// What [`Cluster::host`] refuses; types before the refused one stay hosted.
pub fn host(cluster: &Cluster) -> Result<(), RegisterError> {
    host!(cluster, Aircraft, aircraft::OPS, AircraftType);
    host!(cluster, Counter, counter::OPS, CounterType);
    host!(cluster, Probe, probe::OPS, ProbeType);
    host!(cluster, Register, register::OPS, RegisterType);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_line_of_json() {
        let answer = |epoch| Answer { result: b"{\"total\":1}".to_vec(), served_by: Arc::from("127.0.0.1:7301:00000000000000ab"), epoch };
        let asked = Asked { ty: "counter".into(), key: "c".into(), op: "get".into(), timeout: std::time::Duration::from_secs(1) };
        let EntityOutcome::Answer { json } = answer(7).into_outcome(&asked) else { panic!("no answer") };
        let expected = r#"{"result":{"total":1},"served_by":"127.0.0.1:7301:00000000000000ab","epoch":7}"#;
        assert_eq!(String::from_utf8(json).unwrap(), expected);
        let EntityOutcome::Answer { json } = answer(1 << 60).into_outcome(&asked) else { panic!("no answer") };
        assert!(String::from_utf8(json).unwrap().ends_with(r#""epoch":"1000000000000000"}"#));
    }
}

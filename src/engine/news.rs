//! What the network's turn tells threads of users: events, and what their commands came to. Last in the turn, once workers and peers have their part, as to
//! wake a thread takes its time.

use crate::{
    NodeId,
    engine::node::{Completion, Job, Life, Node},
    proto::{
        membership::{Ending, Event, MemberStatus},
        node::Answer,
    },
};

enum One {
    Event(Event),
    Done(Completion, Answer),
    Ended(Ending),
}

/// What is to be told, in order.
#[derive(Default)]
pub struct News(Vec<One>);

impl News {
    /// Something has happened.
    pub fn event(&mut self, event: Event) {
        self.0.push(One::Event(event));
    }

    /// A command has come to that.
    pub fn done(&mut self, completion: Completion, answer: Answer) {
        self.0.push(One::Done(completion, answer));
    }

    /// Membership is over: threads that see that have all events before it.
    pub fn ended(&mut self, ending: Ending) {
        self.0.push(One::Ended(ending));
    }

    /// Tells it. `left` takes code of users, where the turn is on one of their threads.
    pub fn tell(&mut self, node: &Node, mut left: Option<&mut Vec<Job>>) {
        for one in self.0.drain(..) {
            match one {
                One::Event(event) => {
                    log(&event, node.id);
                    node.publish(event);
                }
                One::Done(completion, answer) => match &mut left {
                    Some(left) => left.push(Box::new(move || completion(answer))),
                    None => completion(answer),
                },
                One::Ended(ending) => {
                    tracing::info!(target: "wingbeat::membership", ?ending, "membership is over");
                    node.set_life(Life::Ended(ending));
                }
            }
        }
    }
}

fn log(event: &Event, me: NodeId) {
    match event {
        Event::Member { member, was } => {
            let was = was.map_or("new", |w| w.name());
            tracing::info!(target: "wingbeat::membership", peer = %member.addr, id = %member.id, was, status = member.status.name(), "member");
            // The first number of a cluster is its founder's.
            if member.id == me && member.status == MemberStatus::Up && member.up_number == 1 {
                tracing::info!(target: "wingbeat::membership", "this node founded a cluster: it is the first of its seeds, or has none, and no other seed answered from within one");
            }
        }
        Event::Unreachable { node, why, .. } => tracing::warn!(target: "wingbeat::membership", peer = %node, %why, "unreachable"),
        Event::Warning { code, text } => tracing::warn!(target: "wingbeat::membership", code, "{text}"),
        Event::Split { mine, theirs, verdict } => tracing::warn!(target: "wingbeat::membership", mine, theirs, %verdict, "split"),
        other => tracing::debug!(target: "wingbeat::membership", event = ?other, "event"),
    }
}

//! The last events of a node, for those who ask and those who listen.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::Serialize;

use super::responder::{STREAM_BYTES_MAX, StreamWriter};

/// Events that can be asked for again.
pub const EVENTS_KEPT: usize = 1000;
/// Largest event in bytes; a larger one is kept without its data.
const EVENT_BYTES_MAX: usize = 1500;
/// Longest kind in bytes.
const KIND_BYTES_MAX: usize = 32;
// A subscriber that asks for everything that is kept must not be cut off for it.
const _: () = assert!(EVENTS_KEPT * (EVENT_BYTES_MAX + 2 * KIND_BYTES_MAX + 64) < STREAM_BYTES_MAX);
/// What ends a server-sent event.
const END: &str = "\n\n";
/// Milliseconds after which a subscriber that lost its connection should try again.
const RETRY_MS: u32 = 1000;

/// A bounded memory of events, and the subscribers to new ones.
///
/// Ids start at 1 and grow by one. Pushing never blocks on a subscriber: one that does not read is cut off.
#[derive(Default)]
pub struct EventRing {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    newest: u64,
    kept: VecDeque<Kept>,
    subscribers: Vec<StreamWriter>,
}

/// Rendered once, when it is pushed: readers only copy, and hold the lock no longer than that.
#[derive(Clone)]
struct Kept {
    id: u64,
    /// As a server-sent event.
    frame: Arc<[u8]>,
    /// Where in the frame its JSON begins; it goes on to the two newlines at the end.
    json_at: usize,
}

#[derive(Serialize)]
struct Row<'a, T> {
    id: u64,
    event: &'a str,
    at_unix_ms: u64,
    data: &'a T,
}

impl EventRing {
    /// An empty ring.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event: its kind (`member`, `leader`, ..) and what it says. From any thread but a worker's: it takes a lock.
    pub fn push(&self, kind: &str, data: &impl Serialize) {
        // The time shown to people; nothing depends on it.
        let at_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let kind: Box<str> = kind.chars().filter(char::is_ascii_graphic).take(KIND_BYTES_MAX).collect();
        let mut inner = self.inner.lock();
        inner.newest += 1;
        let kept = Kept::new(inner.newest, &kind, at_unix_ms, data);
        inner.subscribers.retain(|subscriber| subscriber.send(kept.frame.clone()));
        if inner.kept.len() == EVENTS_KEPT {
            inner.kept.pop_front();
        }
        inner.kept.push_back(kept);
    }

    /// The kept events as `{"events": [..], "newest": id}`.
    pub fn to_json(&self) -> Vec<u8> {
        let (kept, newest) = {
            let inner = self.inner.lock();
            (inner.kept.clone(), inner.newest)
        };
        let mut json = b"{\"events\":[".to_vec();
        for (at, kept) in kept.iter().enumerate() {
            if at > 0 {
                json.push(b',');
            }
            json.extend_from_slice(kept.json());
        }
        json.extend_from_slice(format!("],\"newest\":{newest}}}\n").as_bytes());
        json
    }

    /// Adds a subscriber. With the id of the last event that it has seen (0: none) it first gets what came since, as far as it is kept;
    /// returns how many it missed. Without, it gets what comes from now on.
    pub fn subscribe(&self, last_seen: Option<u64>, subscriber: StreamWriter) -> u64 {
        let mut inner = self.inner.lock();
        inner.subscribers.retain(|s| !s.is_closed());
        let mut text = format!("retry: {RETRY_MS}\n\n").into_bytes();
        let mut missed = 0;
        if let Some(last_seen) = last_seen {
            // An id from before a restart of this node: all that is kept is new to this subscriber.
            let last_seen = if last_seen > inner.newest { 0 } else { last_seen };
            let oldest = inner.kept.front().map_or(inner.newest + 1, |kept| kept.id);
            missed = (oldest - 1).saturating_sub(last_seen);
            if missed > 0 {
                text.extend_from_slice(format!("event: lagged\ndata: {{\"missed\":{missed}}}\n\n").as_bytes());
            }
            inner.kept.iter().filter(|kept| kept.id > last_seen).for_each(|kept| text.extend_from_slice(&kept.frame));
        }
        if subscriber.send(text.into()) {
            inner.subscribers.push(subscriber);
        }
        missed
    }

    /// How many subscribers there are, as far as is known.
    pub fn subscribers(&self) -> usize {
        self.inner.lock().subscribers.len()
    }
}

impl Kept {
    fn new(id: u64, kind: &str, at_unix_ms: u64, data: &impl Serialize) -> Self {
        let json = serde_json::to_string(&Row { id, event: kind, at_unix_ms, data }).ok().filter(|json| json.len() <= EVENT_BYTES_MAX);
        // What has no JSON form or is too large is still an event; a number and a short text always have one.
        let json = json.or_else(|| serde_json::to_string(&Row { id, event: kind, at_unix_ms, data: &() }).ok()).unwrap_or_default();
        let head = format!("id: {id}\nevent: {kind}\ndata: ");
        Self { id, json_at: head.len(), frame: [head.as_str(), &json, END].concat().into_bytes().into() }
    }

    fn json(&self) -> &[u8] {
        &self.frame[self.json_at..self.frame.len() - END.len()]
    }
}

impl std::fmt::Debug for EventRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.inner.lock();
        f.debug_struct("EventRing").field("newest", &inner.newest).field("subscribers", &inner.subscribers.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thousand_events_are_kept() {
        let ring = EventRing::new();
        for n in 0..EVENTS_KEPT + 5 {
            ring.push("member", &n);
        }
        let json: serde_json::Value = serde_json::from_slice(&ring.to_json()).unwrap();
        let events = json["events"].as_array().unwrap();
        assert_eq!((events.len(), &events[0]["id"], &json["newest"]), (EVENTS_KEPT, &6.into(), &1005.into()));
        assert_eq!((&events[0]["event"], &events[0]["data"]), (&"member".into(), &5.into()));
    }

    #[test]
    fn an_event_is_one_line_and_bounded() {
        let ring = EventRing::new();
        ring.push("a\nb", &"x\ny");
        ring.push("big", &"x".repeat(EVENT_BYTES_MAX));
        let json = ring.to_json();
        assert_eq!(json.iter().filter(|b| **b == b'\n').count(), 1);
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!((&json["events"][0]["event"], &json["events"][1]["data"]), (&"ab".into(), &serde_json::Value::Null));
    }
}

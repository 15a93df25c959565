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
const _: () = assert!(EVENT_BYTES_MAX <= u16::MAX as usize && KIND_BYTES_MAX <= u8::MAX as usize);
// A subscriber that asks for everything that is kept must not be cut off for it.
const _: () = assert!(EVENTS_KEPT * (EVENT_BYTES_MAX + 2 * KIND_BYTES_MAX + 64) < STREAM_BYTES_MAX);
/// Milliseconds after which a subscriber that lost its connection should try again.
const RETRY_MS: u32 = 1000;

/// Bytes of an event as it is kept, kind and data, of which there is room for all from the beginning: what shards and members have to say
/// takes about a hundred.
const USUAL_BYTES: usize = 128;

/// A bounded memory of events, and the subscribers to new ones.
///
/// Ids start at 1 and grow by one. Pushing never blocks on a subscriber: one that does not read is cut off.
pub struct EventRing {
    inner: Mutex<Inner>,
}

struct Inner {
    kept: Kept,
    subscribers: Vec<StreamWriter>,
}

/// The last events, one behind the other in one piece of memory that is there from the beginning: a node needs no more of it after days than
/// after its first minute, and a thousand small allocations among others would hold pages that are empty but for them.
#[derive(Clone)]
struct Kept {
    newest: u64,
    marks: VecDeque<Mark>,
    /// Kind and data of each.
    texts: VecDeque<u8>,
}

/// Where an event ends and the next one begins.
#[derive(Copy, Clone)]
struct Mark {
    at_unix_ms: u64,
    kind: u8,
    data: u16,
}

/// An event as it is shown.
struct Shown<'a> {
    id: u64,
    kind: &'a str,
    at_unix_ms: u64,
    /// JSON.
    data: &'a str,
}

impl EventRing {
    /// An empty ring.
    pub fn new() -> Self {
        Self { inner: Mutex::new(Inner { kept: Kept::new(), subscribers: Vec::new() }) }
    }

    /// Adds an event: its kind (`member`, `leader`, ..) and what it says. From any thread but a worker's: it takes a lock.
    pub fn push(&self, kind: &str, data: &impl Serialize) {
        // The time shown to people; nothing depends on it.
        let at_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let kind: String = kind.chars().filter(char::is_ascii_graphic).take(KIND_BYTES_MAX).collect();
        // What has no JSON form or is too large is still an event.
        let data = serde_json::to_string(data).ok();
        let mut inner = self.inner.lock();
        let id = inner.kept.newest + 1;
        let fits = |data: &String| Shown { id, kind: &kind, at_unix_ms, data }.to_json().len() <= EVENT_BYTES_MAX;
        let data = data.filter(fits).unwrap_or_else(|| "null".to_owned());
        inner.kept.push(&kind, at_unix_ms, &data);
        if !inner.subscribers.is_empty() {
            let frame: Arc<[u8]> = Shown { id, kind: &kind, at_unix_ms, data: &data }.to_frame().into_bytes().into();
            inner.subscribers.retain(|subscriber| subscriber.send(frame.clone()));
        }
    }

    /// The kept events as `{"events": [..], "newest": id}`: those behind the last one that the reader has seen (0: none).
    pub fn to_json(&self, last_seen: u64) -> Vec<u8> {
        // Copied first, so that whoever pushes does not wait for the rest.
        let kept = self.inner.lock().kept.clone();
        let mut json = String::from("{\"events\":[");
        kept.since(kept.seen(last_seen), |shown| {
            if !json.ends_with('[') {
                json.push(',');
            }
            json.push_str(&shown.to_json());
        });
        json.push_str(&format!("],\"newest\":{}}}\n", kept.newest));
        json.into_bytes()
    }

    /// Adds a subscriber. With the id of the last event that it has seen (0: none) it first gets what came since, as far as it is kept;
    /// returns how many it missed. Without, it gets what comes from now on.
    pub fn subscribe(&self, last_seen: Option<u64>, subscriber: StreamWriter) -> u64 {
        let mut text = format!("retry: {RETRY_MS}\n\n");
        let mut missed = 0;
        let mut told = u64::MAX;
        if let Some(last_seen) = last_seen {
            let kept = self.inner.lock().kept.clone();
            let last_seen = kept.seen(last_seen);
            missed = (kept.oldest() - 1).saturating_sub(last_seen);
            if missed > 0 {
                text.push_str(&format!("event: lagged\ndata: {{\"missed\":{missed}}}\n\n"));
            }
            kept.since(last_seen, |shown| text.push_str(&shown.to_frame()));
            told = kept.newest;
        }
        let mut inner = self.inner.lock();
        inner.subscribers.retain(|s| !s.is_closed());
        // What came meanwhile.
        inner.kept.since(told, |shown| text.push_str(&shown.to_frame()));
        if subscriber.send(text.into_bytes().into()) {
            inner.subscribers.push(subscriber);
        }
        missed
    }

    /// How many subscribers there are.
    pub fn subscribers(&self) -> usize {
        self.inner.lock().subscribers.iter().filter(|subscriber| !subscriber.is_closed()).count()
    }
}

impl Default for EventRing {
    fn default() -> Self {
        Self::new()
    }
}

/// An empty queue with so much room that is not only promised: the system gives a page when it is written to.
fn in_memory<T: Clone>(room: usize, some: T) -> VecDeque<T> {
    let mut queue = VecDeque::with_capacity(room);
    queue.resize(queue.capacity(), some);
    queue.clear();
    queue
}

impl Kept {
    fn new() -> Self {
        Self {
            newest: 0,
            marks: in_memory(EVENTS_KEPT, Mark { at_unix_ms: 0, kind: 0, data: 0 }),
            texts: in_memory(EVENTS_KEPT * USUAL_BYTES, b' '),
        }
    }

    /// Id of the first event that is kept, or of the next one.
    fn oldest(&self) -> u64 {
        self.newest + 1 - self.marks.len() as u64
    }

    /// The last one that somebody has seen who names this id. One that has not been is from before a restart of this node: all that is kept is new then.
    fn seen(&self, id: u64) -> u64 {
        if id > self.newest { 0 } else { id }
    }

    fn push(&mut self, kind: &str, at_unix_ms: u64, data: &str) {
        if self.marks.len() == EVENTS_KEPT
            && let Some(oldest) = self.marks.pop_front()
        {
            self.texts.drain(..oldest.len());
        }
        self.newest += 1;
        self.marks.push_back(Mark {
            at_unix_ms,
            kind: kind.len().try_into().expect("kinds are cut at KIND_BYTES_MAX"),
            data: data.len().try_into().expect("data above EVENT_BYTES_MAX is left out"),
        });
        self.texts.extend(kind.bytes().chain(data.bytes()));
    }

    /// Those that came after the one with that id, as far as they are kept.
    fn since(&self, id: u64, mut each: impl FnMut(Shown<'_>)) {
        let (mut at, mut text) = (0, Vec::new());
        for (next, mark) in (self.oldest()..).zip(&self.marks) {
            if next > id {
                text.clear();
                text.extend(self.texts.range(at..at + mark.len()));
                let (kind, data) = text.split_at(usize::from(mark.kind));
                let [kind, data] = [kind, data].map(|part| std::str::from_utf8(part).expect("whole strings were put there"));
                each(Shown { id: next, kind, at_unix_ms: mark.at_unix_ms, data });
            }
            at += mark.len();
        }
    }
}

impl Mark {
    fn len(self) -> usize {
        usize::from(self.kind) + usize::from(self.data)
    }
}

impl Shown<'_> {
    fn to_json(&self) -> String {
        let Self { id, kind, at_unix_ms, data } = self;
        // A text is always a JSON string.
        let kind = serde_json::Value::from(*kind);
        format!("{{\"id\":{id},\"event\":{kind},\"at_unix_ms\":{at_unix_ms},\"data\":{data}}}")
    }

    /// As a server-sent event.
    fn to_frame(&self) -> String {
        format!("id: {}\nevent: {}\ndata: {}\n\n", self.id, self.kind, self.to_json())
    }
}

impl std::fmt::Debug for EventRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.inner.lock();
        f.debug_struct("EventRing")
            .field("newest", &inner.kept.newest)
            .field("subscribers", &inner.subscribers.len())
            .finish_non_exhaustive()
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
        let json: serde_json::Value = serde_json::from_slice(&ring.to_json(0)).unwrap();
        let events = json["events"].as_array().unwrap();
        assert_eq!((events.len(), &events[0]["id"], &json["newest"]), (EVENTS_KEPT, &6.into(), &1005.into()));
        assert_eq!((&events[0]["event"], &events[0]["data"]), (&"member".into(), &5.into()));
    }

    #[test]
    fn usual_events_need_no_room_beyond_that_of_the_beginning() {
        let ring = EventRing::new();
        let room = |ring: &EventRing| {
            let inner = ring.inner.lock();
            (inner.kept.texts.capacity(), inner.kept.marks.capacity())
        };
        let before = room(&ring);
        let moved =
            serde_json::json!({"type": "aircraft", "shard": 255, "from": "10.11.12.13:7300", "to": "10.11.12.14:7300", "epoch": "1234567"});
        for _ in 0..3 * EVENTS_KEPT {
            ring.push("shard_moving", &moved);
        }
        assert_eq!(room(&ring), before);
    }

    #[test]
    fn an_event_is_one_line_and_bounded() {
        let ring = EventRing::new();
        ring.push("a\nb", &"x\ny");
        ring.push("big", &"x".repeat(EVENT_BYTES_MAX));
        let json = ring.to_json(0);
        assert_eq!(json.iter().filter(|b| **b == b'\n').count(), 1);
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!((&json["events"][0]["event"], &json["events"][1]["data"]), (&"ab".into(), &serde_json::Value::Null));
    }
}

//! Counters and histograms of a node; the admin surface only prints them.
//!
//! No registry: the engine owns one [`Metrics`] and everybody counts through plain fields. Counters that one thread writes on the path of
//! a message live in a padded group of that thread, so that no two threads write to one cache line.

mod counter;
mod histogram;
mod prometheus;
mod refusal;

use std::time::Duration;

use crossbeam::utils::CachePadded;

pub use counter::Counter;
pub use histogram::{Histogram, Quantiles};
pub use prometheus::{Number, Prometheus};
pub use refusal::{HttpRefusal, Refusals};

use crate::proto::handoff::DropReason;

macro_rules! counters {
    ($(#[$doc:meta])* $group:ident { $($name:ident = $text:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $group { $(#[doc = $text] pub $name: Counter),+ }

        impl $group {
            /// Calls `f` with name, meaning and value of each counter.
            pub fn each(&self, mut f: impl FnMut(&'static str, &'static str, u64)) {
                $(f(stringify!($name), $text, self.$name.get());)+
            }
        }
    };
}

counters! {
    /// What one worker counts. Written by that worker only.
    WorkerCounters {
        messages_handled = "Messages handled by entities.";
        turns = "Turns of workers that found something to do.";
        slow_turns = "Handlers that ran longer than the reporting threshold.";
        handler_panics = "Handlers that panicked.";
        entities_started = "Entities that came into memory.";
        entities_stopped = "Entities that left memory.";
        asks_expired = "Requests dropped before they ran because their deadline had passed.";
        parks = "Times that a worker went to sleep.";
    }
}

counters! {
    /// What the network thread counts. Written by that thread only.
    NetworkCounters {
        datagrams_received = "Datagrams received.";
        datagrams_sent = "Datagrams sent.";
        frames_received = "Frames received from other nodes.";
        frames_sent = "Frames sent to other nodes.";
        turns = "Turns of the network thread.";
        late_turns = "Turns that began late because the thread was starved.";
    }
}

counters! {
    /// What any thread counts. All threads write to the same cache lines: on the path of a message count per lane or worker instead, and
    /// add up here now and then.
    SharedCounters {
        ask_timeouts = "Requests without a reply before their deadline.";
        replies_late = "Replies that arrived after their deadline.";
        casts_unsent = "Published values and broadcasts that a link to another node had no room for.";
        sends_refused = "Messages that were given back to the sender.";
        events_lagged = "Events that a reader was too slow for.";
        callbacks_lost = "Callbacks that came after the helper thread's end.";
        callbacks_panicked = "Callbacks that panicked.";
        adoptions_failed = "Entities that did not take handed-over state and started as new.";
        callbacks_slow = "Callbacks that kept the helper thread longer than 10 ms.";
        dead_letters_missed = "Dead letters that no reader took in time.";
        lease_calls_refused = "Calls to the lease that were not made, as it had not come back from earlier ones.";
    }
}

counters! {
    /// What the HTTP surface counts.
    HttpCounters {
        http_connections_accepted = "Connections to the HTTP surface.";
        http_connections_closed = "Connections to the HTTP surface that ended.";
        http_batch_lines = "Lines of batches that were taken up.";
        http_events_sent = "Events written to subscribers.";
        http_subscribers_dropped = "Subscribers cut off because they did not read.";
        http_handlers_silent = "Requests that the node never answered.";
        http_received_bytes = "Bytes received over HTTP.";
        http_sent_bytes = "Bytes sent over HTTP.";
    }
}

/// Dropped messages by reason.
#[derive(Debug)]
pub struct Drops {
    /// One counter per [`DropReason::ALL`], in that order.
    counts: Box<[Counter]>,
}

impl Default for Drops {
    fn default() -> Self {
        Self { counts: DropReason::ALL.iter().map(|_| Counter::default()).collect() }
    }
}

impl Drops {
    /// Counts `n` messages dropped for one reason.
    pub fn add(&self, reason: DropReason, n: u64) {
        self.counts[reason as usize].add(n);
    }

    /// How many were dropped for this reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts[reason as usize].get()
    }

    /// Label and count of every reason.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        DropReason::ALL.iter().zip(&self.counts).map(|(reason, count)| (reason.label(), count.get())).collect()
    }
}

/// What the HTTP surface measures.
#[derive(Debug, Default)]
pub struct HttpMetrics {
    /// Plain counters.
    pub counters: HttpCounters,
    /// Answers by class of status: index 0 is 1xx.
    pub by_class: [Counter; 5],
    /// Refused requests and connections by reason.
    pub refused: Refusals,
    /// From the end of the request to the start of the answer.
    pub latency: Histogram,
}

impl HttpMetrics {
    /// Counts an answer.
    pub fn answered(&self, status: u16) {
        if let Some(class) = usize::from(status / 100).checked_sub(1).and_then(|at| self.by_class.get(at)) {
            class.add(1);
        }
    }
}

/// Everything that one node counts.
#[derive(Debug)]
pub struct Metrics {
    /// One group per worker.
    pub workers: Box<[CachePadded<WorkerCounters>]>,
    /// The network thread's group.
    pub network: CachePadded<NetworkCounters>,
    /// Counters of any thread.
    pub shared: CachePadded<SharedCounters>,
    /// Dropped messages by reason.
    pub drops: Drops,
    /// The HTTP surface.
    pub http: HttpMetrics,
    /// Length of turns of the network thread.
    pub network_turn: Histogram,
    /// How late the timers of the protocol were, heartbeats among them: until what they send was given to the sockets.
    pub timer_delay: Histogram,
    /// Requests of threads that waited for the answer, from the call to its return, with those that waited in vain. A [sample](SAMPLED).
    pub ask: Histogram,
    /// Length of turns of workers that found something to do. A [sample](SAMPLED).
    pub worker_turn: Histogram,
    /// Moves of shards that this node has heard of: until the shard ran in its new place.
    pub handoff: Histogram,
}

/// One in so many is measured of what happens a million times a second: reading the clock and counting would be a good part of it. A prime number, as who
/// does one thing and then another, over and over, has both of them measured.
pub const SAMPLED: u32 = 61;

/// How long something took, of which there are many. Of `ask` and `worker_turn` one in 61 is measured, so the longest is that of these; an entity that keeps
/// its worker for 0.6 s or more is reported in any case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Latency {
    /// What was measured: `ask`, `worker_turn`, `network_turn`, `timer_delay`, `handoff` or `http`.
    pub of: &'static str,
    /// How many were measured.
    pub count: u64,
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
    /// Longest that was measured.
    pub max: Duration,
}

impl Latency {
    fn new(of: &'static str, histogram: &Histogram) -> Self {
        let Quantiles { count, p50_ns, p99_ns, p999_ns, max_ns, .. } = histogram.snapshot();
        let [p50, p99, p999, max] = [p50_ns, p99_ns, p999_ns, max_ns].map(Duration::from_nanos);
        Self { of, count, p50, p99, p999, max }
    }
}

impl Metrics {
    /// For a node with so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| CachePadded::default()).collect(),
            network: CachePadded::default(),
            shared: CachePadded::default(),
            drops: Drops::default(),
            http: HttpMetrics::default(),
            network_turn: Histogram::default(),
            timer_delay: Histogram::default(),
            ask: Histogram::default(),
            worker_turn: Histogram::default(),
            handoff: Histogram::default(),
        }
    }

    /// Messages handled by all workers.
    pub fn messages_handled(&self) -> u64 {
        self.workers.iter().map(|w| w.messages_handled.get()).sum()
    }

    /// All that is measured in time, since the node began.
    pub fn latencies(&self) -> Vec<Latency> {
        vec![
            Latency::new("ask", &self.ask),
            Latency::new("worker_turn", &self.worker_turn),
            Latency::new("network_turn", &self.network_turn),
            Latency::new("timer_delay", &self.timer_delay),
            Latency::new("handoff", &self.handoff),
            Latency::new("http", &self.http.latency),
        ]
    }

    /// Adds all of it to a Prometheus page.
    pub fn write(&self, out: &mut Prometheus) {
        for (at, worker) in self.workers.iter().enumerate() {
            let label = at.to_string();
            worker.each(|name, help, value| out.counter_with(&format!("worker_{name}"), help, &[("worker", &label)], value));
        }
        self.network.each(|name, help, value| out.counter(&format!("network_{name}"), help, value));
        self.shared.each(|name, help, value| out.counter(name, help, value));
        for (reason, count) in self.drops.all() {
            out.counter_with("messages_dropped", "Accepted messages that were not handled.", &[("reason", reason)], count);
        }
        self.http.counters.each(|name, help, value| out.counter(name, help, value));
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(&self.http.by_class) {
            out.counter_with("http_requests", "Answered HTTP requests by class of status.", &[("class", class)], count.get());
        }
        for (reason, count) in self.http.refused.all() {
            out.counter_with("http_refused", "Refused HTTP requests and connections.", &[("reason", reason)], count);
        }
        out.summary_seconds("http_request_duration_seconds", "From the whole request to its answer.", &self.http.latency.snapshot());
        out.summary_seconds("network_turn_duration_seconds", "Length of turns of the network thread.", &self.network_turn.snapshot());
        let ask = self.ask.snapshot();
        out.summary_seconds(
            "ask_duration_seconds",
            "A sample of the requests of threads that waited for the answer: until they had it or gave up.",
            &ask,
        );
        out.summary_seconds(
            "worker_turn_duration_seconds",
            "A sample of the turns of workers that found something.",
            &self.worker_turn.snapshot(),
        );
        out.summary_seconds(
            "handoff_duration_seconds",
            "Moves of shards that this node has heard of: until the shard ran in its new place.",
            &self.handoff.snapshot(),
        );
        let delay = self.timer_delay.snapshot();
        out.summary_seconds("network_timer_delay_seconds", "How late timers of the protocol were, heartbeats among them.", &delay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_has_a_counter_of_its_own() {
        let drops = Drops::default();
        for (n, reason) in DropReason::ALL.iter().enumerate() {
            drops.add(*reason, n as u64 + 1);
        }
        for (n, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(drops.get(*reason), n as u64 + 1);
            assert_eq!(drops.all()[n], (reason.label(), n as u64 + 1));
        }
    }

    #[test]
    fn groups_of_threads_do_not_share_a_cache_line() {
        let metrics = Metrics::new(2);
        let at = |w: usize| std::ptr::from_ref(&*metrics.workers[w]).addr();
        assert!(at(1) - at(0) >= 64 && at(0) % 64 == 0);
    }

    #[test]
    fn handled_messages_are_summed_over_workers() {
        let metrics = Metrics::new(3);
        metrics.workers[0].messages_handled.bump(2);
        metrics.workers[2].messages_handled.bump(5);
        assert_eq!(metrics.messages_handled(), 7);
    }

    #[test]
    fn a_status_outside_the_classes_is_no_panic() {
        let http = HttpMetrics::default();
        for status in [0, 99, 100, 204, 599, 600, u16::MAX] {
            http.answered(status);
        }
        assert_eq!(http.by_class.iter().map(Counter::get).collect::<Vec<_>>(), [1, 1, 0, 0, 1]);
    }
}

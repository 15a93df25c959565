//! The rows of a report: what is measured, and what it must come to.

use serde_json::Value;

/// One measurement of a report, and what is read from it.
pub struct Row {
    /// What it is, and the name of its files.
    pub id: &'static str,
    /// Arguments of `bench`.
    pub args: &'static [&'static str],
    /// Lines of the table.
    pub checks: &'static [Check],
}

/// A line of the table: figures by JSON pointer into what `bench --json` says.
pub struct Check {
    pub what: &'static str,
    pub figure: &'static str,
    /// Empty: there is no limit beside it.
    pub limit: &'static str,
    pub unit: Unit,
    /// What must and aim speak of; empty if there are none.
    pub judged: &'static str,
    pub must: Bound,
    pub aim: Bound,
}

/// How a figure is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Unit {
    PerSecond,
    /// Nanoseconds, written in microseconds or, if there are many, milliseconds.
    Time,
    Nanoseconds,
    Bytes,
    Mebibytes,
    Percent,
    Milliseconds,
    Seconds,
    Plain,
}

/// What a judged figure may be.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Free,
}

use Bound::{AtLeast, AtMost, Free};

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            AtMost(bound) => value <= bound,
            AtLeast(bound) => value >= bound,
            Free => true,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AtMost(bound) => write!(f, "<= {}", number(*bound)),
            AtLeast(bound) => write!(f, ">= {}", number(*bound)),
            Free => f.write_str("-"),
        }
    }
}

/// A number with as many digits as a reader wants of it.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e4 => format!("{:.0} k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{}", (value * 100.0).round() / 100.0),
        _ => format!("{}", (value * 1e4).round() / 1e4),
    }
}

impl Unit {
    pub fn write(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", number(value)),
            Self::Time if value >= 1e7 => format!("{} ms", number(value / 1e6)),
            Self::Time => format!("{} us", number(value / 1e3)),
            Self::Nanoseconds => format!("{} ns", number(value)),
            Self::Bytes => format!("{} B", number(value)),
            Self::Mebibytes => format!("{} MiB", number(value)),
            Self::Percent => format!("{} %", number(value)),
            Self::Milliseconds => format!("{} ms", number(value)),
            Self::Seconds => format!("{} s", number(value)),
            Self::Plain => number(value),
        }
    }
}

/// What came of a check.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Aim,
    Must,
    Missed,
    /// Others used too much of the machine: the figure proves nothing.
    Void,
    /// There is nothing that it has to hold.
    Free,
    /// The figure is not there.
    Absent,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Aim => "aim",
            Self::Must => "must",
            Self::Missed => "**missed**",
            Self::Void => "void",
            Self::Free => "-",
            Self::Absent => "absent",
        })
    }
}

impl Check {
    /// Judges what `bench --json` said.
    pub fn judge(&self, said: &Value) -> Verdict {
        if self.judged.is_empty() {
            return if said["void"] == true { Verdict::Void } else { Verdict::Free };
        }
        // What is lost is lost, and allocations are counted, whatever else the machine does; but a debug build checks itself, which allocates.
        let counts = [FAILED, GROWTH].contains(&self.judged) || self.judged == ALLOCATIONS && said["environment"]["debug_build"] != true;
        match said.pointer(self.judged).and_then(Value::as_f64) {
            None => Verdict::Absent,
            Some(_) if said["void"] == true && !counts => Verdict::Void,
            Some(value) if self.aim != Free && self.aim.holds(value) => Verdict::Aim,
            Some(value) if self.must.holds(value) => Verdict::Must,
            Some(_) => Verdict::Missed,
        }
    }
}

const RATE: &str = "/throughput_per_s";
const ALLOCATIONS: &str = "/allocations_per_message";
const FAILED: &str = "/failed";
const SUSPICIONS: &str = "/false_suspicions";
/// The larger one of bytes and events.
const GROWTH: &str = "/details/growth";

const fn throughput(what: &'static str, must: Bound, aim: Bound) -> Check {
    let judged = if matches!(must, Free) { "" } else { "/ratio" };
    Check { what, figure: RATE, limit: "/limit/throughput_per_s", unit: Unit::PerSecond, judged, must, aim }
}

const fn p50(what: &'static str, must: Bound, aim: Bound) -> Check {
    Check {
        what,
        figure: "/latency_ns/p50",
        limit: "/limit/latency_ns/p50",
        unit: Unit::Time,
        judged: if matches!(must, Free) { "" } else { "/ratio" },
        must,
        aim,
    }
}

const fn p99(what: &'static str, must: Bound, aim: Bound) -> Check {
    let judged = if matches!(must, Free) { "" } else { "/ratio_p99" };
    Check { what, figure: "/latency_ns/p99", limit: "/limit/latency_ns/p99", unit: Unit::Time, judged, must, aim }
}

const fn p999(what: &'static str, must: Bound, aim: Bound) -> Check {
    let judged = if matches!(must, Free) { "" } else { "/ratio" };
    Check { what, figure: "/latency_ns/p999", limit: "/limit/latency_ns/p99", unit: Unit::Time, judged, must, aim }
}

/// A tail has no limit of its own beside it.
const fn longest(what: &'static str) -> Check {
    Check { what, figure: "/latency_ns/max", limit: "", unit: Unit::Time, judged: "", must: Free, aim: Free }
}

/// Messages of this size lie in rings, so that none needs an allocation. A few of the set-up of a run are spread over its millions of messages.
const fn allocations(what: &'static str) -> Check {
    Check { what, figure: ALLOCATIONS, limit: "", unit: Unit::Plain, judged: ALLOCATIONS, must: AtMost(0.01), aim: AtMost(0.001) }
}

/// A figure that is judged by itself.
const fn milliseconds(what: &'static str, figure: &'static str, must: Bound, aim: Bound) -> Check {
    Check { what, figure, limit: "", unit: Unit::Milliseconds, judged: figure, must, aim }
}

/// What an idle entity takes, which is judged by itself.
const fn bytes(what: &'static str, must: Bound, aim: Bound) -> Check {
    const FIGURE: &str = "/bytes_per_entity";
    let judged = if matches!(must, Free) { "" } else { FIGURE };
    Check { what, figure: FIGURE, limit: "/limit/bytes_per_entity", unit: Unit::Bytes, judged, must, aim }
}

/// Requests that got no answer, or a wrong one, in all rounds.
const fn lost(what: &'static str) -> Check {
    Check { what, figure: FAILED, limit: "", unit: Unit::Plain, judged: FAILED, must: AtMost(0.0), aim: AtMost(0.0) }
}

/// All rows, in the order of the page.
pub const ROWS: &[Row] = &[
    Row {
        id: "local-tell",
        args: &["local-tell"],
        checks: &[throughput("local tell, batches", AtLeast(3.0), AtLeast(5.0)), allocations("allocations per local tell")],
    },
    Row {
        id: "local-tell-single",
        args: &["local-tell", "--single"],
        checks: &[throughput("local tell, one by one", AtLeast(1.0), AtLeast(1.3))],
    },
    Row {
        id: "local-ask",
        args: &["local-ask"],
        checks: &[p50("local ask p50", AtMost(1.0), AtMost(0.5)), p99("local ask p99", AtMost(1.0), AtMost(0.3))],
    },
    Row {
        id: "local-tell-inside",
        args: &["local-tell", "--inside"],
        checks: &[throughput("tell between entities of one worker, batches", Free, Free)],
    },
    Row {
        id: "local-ask-inside",
        args: &["local-ask", "--inside"],
        checks: &[p50("ask between entities of one worker, p50", Free, Free), p99("ask between entities of one worker, p99", Free, Free)],
    },
    Row {
        id: "local-ask-half",
        args: &["local-ask", "--rate", "half-of-peak"],
        checks: &[p999("local ask at half of peak, p99.9", Free, Free), longest("local ask at half of peak, longest")],
    },
    Row {
        id: "remote-tell",
        args: &["remote-tell"],
        checks: &[throughput("remote tell, batches", AtLeast(0.15), AtLeast(0.30)), allocations("allocations per remote tell, sender")],
    },
    Row {
        id: "remote-ask",
        args: &["remote-ask"],
        checks: &[p50("remote ask p50", AtMost(2.5), AtMost(1.7)), p99("remote ask p99", AtMost(4.0), AtMost(2.5))],
    },
    Row {
        id: "remote-ask-128",
        args: &["remote-ask", "--window", "128"],
        checks: &[throughput("remote ask, 128 in flight", AtLeast(0.03), AtLeast(0.05))],
    },
    Row {
        id: "remote-ask-half",
        args: &["remote-ask", "--rate", "half-of-peak"],
        checks: &[
            p999("remote ask at half of peak, p99.9 (to the limit's p99)", AtMost(30.0), AtMost(10.0)),
            longest("remote ask at half of peak, longest"),
        ],
    },
    Row {
        id: "remote-tell-serde",
        args: &["remote-tell", "--serde"],
        checks: &[throughput("remote tell, batches, by serde", AtLeast(0.06), AtLeast(0.10))],
    },
    Row {
        id: "local-ask-one-core",
        args: &["local-ask", "--one-core"],
        checks: &[p50("local ask on one core, p50", Free, Free), p99("local ask on one core, p99", Free, Free)],
    },
    Row {
        id: "remote-ask-one-core",
        args: &["remote-ask", "--one-core"],
        checks: &[p50("remote ask on one core, p50", Free, Free), p99("remote ask on one core, p99", Free, Free)],
    },
    Row {
        id: "remote-ask-one-core-low-cpu",
        args: &["remote-ask", "--idle", "low_cpu", "--one-core"],
        // Coerce, the best peer, was seen at 1.66 of this limit; perf/peers/run.sh compares with it in one run.
        checks: &[p50("remote ask on one core, low_cpu, p50", AtMost(1.66), AtMost(0.75 * 1.66))],
    },
    Row {
        id: "local-ask-worker-per-core",
        args: &["local-ask", "--set", "node.workers=2"],
        checks: &[p50("local ask with a worker per core, p50", Free, Free), p99("local ask with a worker per core, p99", Free, Free)],
    },
    Row {
        id: "remote-ask-worker-per-core",
        args: &["remote-ask", "--set", "node.workers=2"],
        checks: &[p50("remote ask with a worker per core, p50", Free, Free), p99("remote ask with a worker per core, p99", Free, Free)],
    },
    Row {
        id: "timer",
        args: &["timer"],
        checks: &[Check {
            what: "timer, set and cancel among 1 M",
            figure: "/ns_per_timer",
            limit: "/limit/ns_per_timer",
            unit: Unit::Nanoseconds,
            judged: "/ratio",
            must: AtMost(1.0 / 15.0),
            aim: AtMost(1.0 / 30.0),
        }],
    },
    Row {
        id: "codec",
        args: &["codec"],
        checks: &[Check {
            what: "envelope, write and read",
            figure: "/ns_per_envelope",
            limit: "/limit/ns_per_envelope",
            unit: Unit::Nanoseconds,
            judged: "/ratio",
            must: AtMost(0.25),
            aim: AtMost(0.1),
        }],
    },
    Row {
        id: "start",
        args: &["start"],
        checks: &[Check { judged: RATE, ..throughput("start by first message, per worker", AtLeast(1e6), AtLeast(3e6)) }],
    },
    Row {
        id: "memory",
        args: &["memory", "--entities", "1000000"],
        checks: &[bytes("idle entity of a million, over key and state", AtMost(80.0), AtMost(48.0))],
    },
    // Right behind a growth of the tables, which lie half empty then.
    Row {
        id: "memory-grown",
        args: &["memory", "--entities", "1300000"],
        checks: &[bytes("the same of 1.3 million, whose tables have just grown", Free, Free)],
    },
    Row {
        id: "idle",
        args: &["idle"],
        checks: &[
            Check {
                what: "idle node of three, of one core",
                figure: "/cpu_percent_per_node",
                limit: "",
                unit: Unit::Percent,
                judged: "/cpu_percent_per_node",
                must: AtMost(1.0),
                aim: AtMost(0.3),
            },
            Check {
                what: "idle node of three, resident memory",
                figure: "/details/resident_mib",
                limit: "",
                unit: Unit::Mebibytes,
                judged: "/details/resident_mib",
                must: AtMost(20.0),
                aim: AtMost(8.0),
            },
            milliseconds("three processes from start to all up", "/details/formed_ms", AtMost(2000.0), AtMost(500.0)),
        ],
    },
    Row {
        id: "handoff",
        args: &["handoff"],
        checks: &[
            p99("hand-over of 1,000 entities: their messages wait, p99", AtMost(10.0), AtMost(3.0)),
            lost("requests that failed during hand-overs"),
        ],
    },
    Row {
        id: "leave",
        args: &["leave"],
        checks: &[
            lost("requests that failed while one of three nodes left"),
            p99("wait of a request meanwhile, p99", Free, Free),
            longest("longest wait of a request meanwhile"),
        ],
    },
    Row {
        id: "rebalance",
        args: &["rebalance"],
        checks: &[
            Check {
                what: "balance behind a third node",
                figure: "/seconds",
                limit: "/limit/seconds",
                unit: Unit::Seconds,
                judged: "",
                must: Free,
                aim: Free,
            },
            lost("requests that failed while shards were balanced"),
        ],
    },
    Row {
        id: "failover",
        args: &["failover"],
        checks: &[
            milliseconds("fail-over: decision to answer, p99 of entities", "/details/decision_to_answer_ms", AtMost(200.0), AtMost(20.0)),
            milliseconds("fail-over: whole path, with proof of death", "/whole_path_ms", AtMost(1000.0), AtMost(150.0)),
        ],
    },
    Row {
        id: "failover-unproven",
        args: &["failover", "--set", "downing.proof_of_death=false"],
        checks: &[Check {
            limit: "/limit/whole_path_ms",
            judged: "/ratio",
            ..milliseconds("fail-over: whole path, to the sum of its bounds", "/whole_path_ms", AtMost(1.1), Free)
        }],
    },
    Row {
        id: "heartbeat-delay",
        args: &["heartbeat-delay"],
        checks: &[Check {
            limit: "/limit/details/p999_ms",
            ..milliseconds("heartbeats late under full TCP load, p99.9", "/details/p999_ms", AtMost(10.0), AtMost(2.0))
        }],
    },
    Row {
        id: "foreign-load",
        args: &["foreign-load"],
        checks: &[
            throughput("tell between two nodes while others use every core, to alone", AtLeast(0.3), AtLeast(0.45)),
            Check {
                what: "nodes suspected meanwhile",
                figure: SUSPICIONS,
                limit: "",
                unit: Unit::Plain,
                judged: SUSPICIONS,
                must: AtMost(0.0),
                aim: AtMost(0.0),
            },
        ],
    },
    Row {
        id: "network-turn",
        args: &["network-turn"],
        checks: &[
            milliseconds("longest turn of the network thread, one of 10,000 members", "/longest_ms", AtMost(2.0), AtMost(0.5)),
            Check { judged: "", ..milliseconds("the same of the member that leads", "/details/leader_longest_ms", Free, Free) },
        ],
    },
    Row {
        id: "growth",
        args: &["growth"],
        checks: &[Check {
            what: "growth per node and heartbeat, 10 to 1,000 nodes",
            figure: "/bytes_per_node_per_heartbeat",
            limit: "/limit/bytes_per_node_per_heartbeat",
            unit: Unit::Bytes,
            judged: GROWTH,
            must: AtMost(1.5),
            aim: AtMost(1.2),
        }],
    },
    Row {
        id: "simulator",
        args: &["simulator"],
        checks: &[Check { judged: RATE, ..throughput("simulator, events", AtLeast(0.3e6), AtLeast(1e6)) }],
    },
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_holds_its_aim_its_must_or_neither() {
        let check = throughput("tell", AtLeast(3.0), AtLeast(5.0));
        let of = |ratio: f64| check.judge(&json!({"ratio": ratio, "void": false}));
        assert_eq!((of(5.0), of(3.5), of(2.9)), (Verdict::Aim, Verdict::Must, Verdict::Missed));
        let check = p50("ask", AtMost(2.5), AtMost(1.7));
        assert_eq!(check.judge(&json!({"ratio": 2.0, "void": false})), Verdict::Must);
    }

    #[test]
    fn a_void_figure_holds_nothing_but_what_is_counted_does() {
        let void = json!({"ratio": 9.0, "allocations_per_message": 0.0, "void": true});
        assert_eq!(throughput("tell", AtLeast(3.0), AtLeast(5.0)).judge(&void), Verdict::Void);
        assert_eq!(allocations("none").judge(&void), Verdict::Aim);
        let debug = json!({"allocations_per_message": 0.0, "void": true, "environment": {"debug_build": true}});
        assert_eq!(allocations("none").judge(&debug), Verdict::Void);
        assert_eq!(longest("tail").judge(&void), Verdict::Void);
    }

    #[test]
    fn a_figure_that_has_to_hold_nothing_holds_nothing() {
        for check in ROWS.iter().flat_map(|row| row.checks).filter(|check| check.must == Free) {
            assert_eq!(check.judge(&json!({"ratio": 1.0, "void": false})).to_string(), "-", "{}", check.what);
        }
    }

    #[test]
    fn a_figure_that_is_not_there_is_no_success() {
        assert_eq!(p50("ask", AtMost(2.5), AtMost(1.7)).judge(&json!({"ratio": null, "void": false})), Verdict::Absent);
    }

    #[test]
    fn numbers_have_the_digits_that_a_reader_wants() {
        let all = [0.0, 0.06667, 2.5, 512.3, 45_600.0, 2_370_000.0].map(number);
        assert_eq!(all, ["0", "0.0667", "2.5", "512", "46 k", "2.37 M"]);
    }

    #[test]
    fn ids_name_files_and_are_unique() {
        let mut ids: Vec<_> = ROWS.iter().map(|row| row.id).collect();
        assert!(ids.iter().all(|id| id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ROWS.len());
    }
}

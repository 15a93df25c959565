//! Questions to a running cluster, and the acts of an operator.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::{
    fail::{Exit, Failure},
    http::{Admin, encoded},
    out::{heard, say},
    table::{Column, colours, column, field, paint, render, shown},
};

/// Which node is asked, and in which form it is shown.
#[derive(Args, Clone, Debug)]
pub struct At {
    /// Admin address of a node of the cluster
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8301")]
    at: String,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl At {
    /// Whether machines read the answer.
    pub fn is_json(&self) -> bool {
        self.json
    }

    pub fn admin(&self, token: Option<String>) -> Result<Admin, Failure> {
        Admin::new(&self.at, token)
    }

    /// The answer as JSON, or as the table made of it.
    pub fn show(&self, answer: &Value, table: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.json {
            true => say(&answer.to_string()),
            false => say(&table()),
        }
    }
}

/// For what changes the cluster: a node may ask for a token.
#[derive(Args, Clone, Debug)]
pub struct Act {
    #[command(flatten)]
    at: At,
    /// The node's `admin.token`; default: the environment's WINGBEAT_ADMIN__TOKEN
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Address of the member, as `wingbeat members` shows it
    #[arg(value_name = "HOST:PORT")]
    member: String,
}

/// The rows of an answer.
pub fn rows(answer: &Value, name: &str) -> Vec<Value> {
    answer[name].as_array().cloned().unwrap_or_default()
}

fn code(healthy: bool) -> ExitCode {
    if healthy { ExitCode::SUCCESS } else { Exit::Unhealthy.into() }
}

/// `wingbeat status`
pub fn status(at: &At) -> Result<ExitCode, Failure> {
    let answer = at.admin(None)?.get("/api/v1/status")?;
    let healthy = answer["status"] == "up" && answer["converged"] == true;
    at.show(&answer, || {
        let colour = colours();
        let mut lines = vec![format!("{:<13}{}", "cluster", shown(&answer["cluster"]))];
        let me = format!("{} ({})", shown(&answer["self"]["addr"]), shown(&answer["self"]["incarnation"]));
        lines.push(format!("{:<13}{me}", "node"));
        for name in ["status", "size", "leader", "deputies", "oldest", "coordinator", "view_version", "converged", "moving"] {
            let text = shown(&answer[name]);
            let text = match name {
                "status" | "converged" => paint(&text, if healthy { "32" } else { "31" }, colour),
                _ => text,
            };
            lines.push(format!("{name:<13}{text}"));
        }
        for warning in rows(&answer, "warnings") {
            lines.push(paint(&format!("warning: {}", shown(&warning)), "33", colour));
        }
        lines.join("\n")
    })?;
    Ok(code(healthy))
}

/// `wingbeat members`
pub fn members(at: &At) -> Result<ExitCode, Failure> {
    let answer = at.admin(None)?.get("/api/v1/members")?;
    let members = rows(&answer, "members");
    at.show(&answer, || {
        let reach = column("REACHABLE", |row| match row["reachable"] == true {
            true => "yes".into(),
            false => format!("no (by {})", shown(&row["observers"])),
        });
        let columns = [
            field("NODE", "addr"),
            field("INCARNATION", "incarnation"),
            field("STATUS", "status"),
            reach,
            field("ROLES", "roles"),
            field("UP NUMBER", "up_number"),
            field("VERSION", "app_version"),
            field("SHARDS", "shards"),
            field("ENTITIES", "entities"),
        ];
        render(&columns, &members, colours())
    })?;
    Ok(code(members.iter().all(|member| member["reachable"] == true)))
}

/// `wingbeat links`
pub fn links(at: &At) -> Result<ExitCode, Failure> {
    let answer = at.admin(None)?.get("/api/v1/links")?;
    at.show(&answer, || {
        let phi = column("PHI", |row| row["phi"].as_f64().map_or("-".into(), |phi| format!("{phi:.2}")));
        let columns = [
            field("FROM", "observer"),
            field("TO", "subject"),
            field("STATE", "state"),
            phi,
            field("THRESHOLD", "threshold"),
            column("RTT P50 us", |row| shown(&row["rtt_us"]["p50"])),
            column("RTT P99 us", |row| shown(&row["rtt_us"]["p99"])),
            field("LOSS", "loss"),
        ];
        render(&columns, &rows(&answer, "links"), colours())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Which shards.
#[derive(Args, Clone, Debug)]
pub struct Shards {
    #[command(flatten)]
    at: At,
    /// Entity type; without it the types are listed
    #[arg(value_name = "TYPE", required_if_eq("map", "true"))]
    entity_type: Option<String>,
    /// One character for each shard, by its home
    #[arg(long)]
    map: bool,
}

/// `wingbeat shards`
pub fn shards(args: &Shards) -> Result<ExitCode, Failure> {
    let admin = args.at.admin(None)?;
    let Some(entity_type) = &args.entity_type else {
        let answer = admin.get("/api/v1/shards")?;
        let columns = || [field("TYPE", "type"), field("SHARDS", "shards"), field("ENTITIES", "entities")];
        args.at.show(&answer, || render(&columns(), &rows(&answer, "types"), colours()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let answer = admin.get(&format!("/api/v1/shards/{}", encoded(entity_type)))?;
    let shards = rows(&answer, "shards");
    let total = match args.map && !args.at.json {
        true => shards_of(&admin, entity_type)?,
        false => 0,
    };
    args.at.show(&answer, || if args.map { map(&shards, total) } else { render(&shard_columns(), &shards, colours()) })?;
    Ok(ExitCode::SUCCESS)
}

/// How many shards a type has: those that nobody has used yet are in no row.
fn shards_of(admin: &Admin, entity_type: &str) -> Result<usize, Failure> {
    let types = rows(&admin.get("/api/v1/shards")?, "types");
    let count = types.iter().find(|row| row["type"] == *entity_type).and_then(|row| row["shards"].as_u64());
    Ok(count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
}

fn shard_columns() -> Vec<Column<'static>> {
    let rate = column("PER SECOND", |row| row["rate_per_s"].as_f64().map_or("-".into(), |rate| format!("{rate:.0}")));
    vec![
        field("SHARD", "shard"),
        field("HOME", "owner"),
        field("EPOCH", "epoch"),
        field("STATE", "state"),
        field("ENTITIES", "entities"),
        rate,
    ]
}

/// Shards in rows of fifty, a letter for each home; a dot for none, a small letter for one that is not active.
fn map(shards: &[Value], total: usize) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const ROW: usize = 50;
    const SHARDS_MAX: usize = 1 << 20;
    let mut homes: Vec<&str> = shards.iter().filter_map(|shard| shard["owner"].as_str()).collect();
    homes.sort_unstable();
    homes.dedup();
    let mut letters = vec!['.'; total.min(SHARDS_MAX)];
    for shard in shards {
        let home = shard["owner"].as_str().and_then(|owner| homes.iter().position(|home| *home == owner));
        let place = shard["shard"].as_u64().and_then(|number| letters.get_mut(usize::try_from(number).ok()?));
        if let (Some(home), Some(place)) = (home, place) {
            let letter = char::from(LETTERS[home % LETTERS.len()]);
            *place = if shard["state"] == "active" { letter } else { letter.to_ascii_lowercase() };
        }
    }
    let rows = letters.chunks(ROW).enumerate();
    let mut lines: Vec<String> = rows.map(|(row, letters)| format!("{:>6}  {}", row * ROW, letters.iter().collect::<String>())).collect();
    for (index, home) in homes.iter().enumerate() {
        let count = shards.iter().filter(|shard| shard["owner"] == **home).count();
        lines.push(format!("{}  {home}: {count}", char::from(LETTERS[index % LETTERS.len()])));
    }
    lines.push("small letter: not active; dot: no home".into());
    lines.join("\n")
}

/// Which entity.
#[derive(Args, Clone, Debug)]
pub struct Where {
    #[command(flatten)]
    at: At,
    /// Entity type
    #[arg(value_name = "TYPE")]
    entity_type: String,
    /// Key of the entity
    #[arg(value_name = "KEY")]
    key: String,
}

/// `wingbeat where`
pub fn locate(args: &Where) -> Result<ExitCode, Failure> {
    let path = format!("/api/v1/shards/{}/locate?key={}", encoded(&args.entity_type), encoded(&args.key));
    let answer = args.at.admin(None)?.get(&path)?;
    args.at.show(&answer, || render(&shard_columns()[..4], std::slice::from_ref(&answer), colours()))?;
    Ok(ExitCode::SUCCESS)
}

/// `wingbeat handoffs`
pub fn handoffs(at: &At) -> Result<ExitCode, Failure> {
    let answer = at.admin(None)?.get("/api/v1/handoffs")?;
    at.show(&answer, || {
        let columns = [
            field("TYPE", "type"),
            field("SHARD", "shard"),
            field("FROM", "from"),
            field("TO", "to"),
            field("EPOCH", "epoch"),
            field("STATE", "state"),
            field("AGE ms", "age_ms"),
        ];
        match rows(&answer, "handoffs") {
            none if none.is_empty() => "no shard is on the move".into(),
            some => render(&columns, &some, colours()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `wingbeat latency`
pub fn latency(at: &At) -> Result<ExitCode, Failure> {
    let admin = at.admin(None)?;
    let answer = admin.get("/api/v1/latency")?;
    // For people only, and known then.
    let slow = if at.json { Value::Null } else { admin.get("/api/v1/slow")? };
    at.show(&answer, || {
        let span =
            |heading, name: &'static str| column(heading, move |row| row[name].as_u64().map_or_else(|| shown(&row[name]), span_text));
        let columns = [
            field("OF", "of"),
            field("MEASURED", "count"),
            span("P50", "p50_ns"),
            span("P99", "p99_ns"),
            span("P99.9", "p999_ns"),
            span("LONGEST", "max_ns"),
        ];
        let mut text = render(&columns, &rows(&answer, "latency"), colours());
        let slow = rows(&slow, "slow");
        if !slow.is_empty() {
            let columns = [
                field("SLOW TURN OF", "type"),
                field("KEY", "key"),
                field("SHARD", "shard"),
                field("WORKER", "worker"),
                field("TOOK_MS", "took_ms"),
                field("ENDED_MS_AGO", "ended_ms_ago"),
            ];
            text.push_str("\n\n");
            text.push_str(&render(&columns, &slow, colours()));
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A span in the largest unit of which it has one.
fn span_text(ns: u64) -> String {
    let spans = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match spans.into_iter().find(|(unit, _)| ns >= *unit) {
        Some((unit, name)) => format!("{:.3} {name}", ns as f64 / unit as f64),
        None => format!("{ns} ns"),
    }
}

/// Which events.
#[derive(Args, Clone, Debug)]
pub struct Events {
    #[command(flatten)]
    at: At,
    /// Goes on with those that come
    #[arg(short, long)]
    follow: bool,
}

/// `wingbeat events`
pub fn events(args: &Events) -> Result<ExitCode, Failure> {
    let admin = args.at.admin(None)?;
    if args.follow {
        let mut outcome = Ok(true);
        admin.follow("/api/v1/events", |event| {
            let parsed: Value = serde_json::from_str(event).unwrap_or_else(|_| Value::from(event));
            outcome = heard(&if args.at.json { parsed.to_string() } else { event_line(&parsed) });
            matches!(outcome, Ok(true))
        })?;
        return outcome.map(|_| ExitCode::SUCCESS);
    }
    let answer = admin.get("/api/v1/events")?;
    args.at.show(&answer, || rows(&answer, "events").iter().map(event_line).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// An event as one line: its time, its name, then its fields.
fn event_line(event: &Value) -> String {
    if let Some(missed) = event["missed"].as_u64() {
        return format!("{missed} events were missed: they came faster than they were read");
    }
    let time = event["at_unix_ms"].as_u64().map_or_else(|| "-".into(), time_of_day);
    let mut line = format!("{time}  {:<14}", shown(&event["event"]));
    if let Value::Object(fields) = &event["data"] {
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            line.push_str(&format!("  {name}={}", shown(value)));
        }
    }
    line
}

/// Hours to milliseconds of the day, UTC.
fn time_of_day(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1_000 % 86_400, unix_ms % 1_000);
    format!("{:02}:{:02}:{:02}.{ms:03}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// `wingbeat drops`
pub fn drops(at: &At) -> Result<ExitCode, Failure> {
    let answer = at.admin(None)?.get("/api/v1/drops")?;
    at.show(&answer, || {
        let counted: Vec<Value> = match &answer["drops"] {
            Value::Array(rows) => rows.clone(),
            Value::Object(by_reason) => by_reason.iter().map(|(reason, count)| json!({"reason": reason, "count": count})).collect(),
            _ => Vec::new(),
        };
        let counted: Vec<Value> = counted.into_iter().filter(|row| row["count"].as_u64() != Some(0)).collect();
        match counted.is_empty() {
            true => "no message was dropped".into(),
            false => render(&[field("REASON", "reason"), field("MESSAGES", "count")], &counted, colours()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `wingbeat leave`
pub fn leave(args: &Act) -> Result<ExitCode, Failure> {
    act(args, "leave", "leaves: its shards are handed off first; `wingbeat members` shows when it is gone")
}

/// `wingbeat down`
pub fn down(args: &Act) -> Result<ExitCode, Failure> {
    act(args, "down", "is declared dead: what it held in memory is given up; `wingbeat members` shows when it is gone")
}

fn act(args: &Act, verb: &str, said: &str) -> Result<ExitCode, Failure> {
    let token = args.token.clone().or_else(|| std::env::var("WINGBEAT_ADMIN__TOKEN").ok());
    let answer = args.at.admin(token)?.act(&format!("/api/v1/members/{}/{verb}", encoded(&args.member)))?;
    args.at.show(&answer, || format!("{} {said}", args.member))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_a_letter_for_each_home() {
        let shard = |number: u32, owner: &str, state: &str| json!({"shard": number, "owner": owner, "state": state});
        let shards = [shard(0, "b:1", "active"), shard(1, "a:1", "stopping"), shard(3, "b:1", "active"), shard(99, "b:1", "active")];
        let text = map(&shards, 5);
        assert!(text.starts_with("     0  Ba.B.\nA  a:1: 1\nB  b:1: 3"), "{text}");
    }

    #[test]
    fn an_event_is_one_line_with_its_name_first() {
        let event = json!({"id": 3, "at_unix_ms": 90_061_001, "data": {"addr": "a:1", "roles": [], "was": null}, "event": "member"});
        assert_eq!(event_line(&event), "01:01:01.001  member          addr=a:1  roles=-");
    }

    #[test]
    fn spans_are_read_at_a_glance() {
        let texts = [0, 999, 1_000, 840_123, 2_500_000, 59_000_000_000].map(span_text);
        assert_eq!(texts, ["0 ns", "999 ns", "1.000 us", "840.123 us", "2.500 ms", "59.000 s"]);
    }
}

//! What happens in a run: the `[[at]]` entries of a scenario.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    scenario::selector,
    selector::Selector,
    tree::{Item, ScenarioError, did_you_mean, parse_duration, refuse_unknown},
};

/// One entry.
#[derive(Clone, PartialEq, Debug)]
pub struct Action {
    /// When.
    pub at: Duration,
    /// Where in the file.
    pub line: usize,
    /// What.
    pub act: Act,
}

/// What an action does.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Act {
    Crash {
        nodes: Selector,
    },
    Restart {
        nodes: Selector,
        wipe: bool,
    },
    Pause {
        nodes: Selector,
        span: Option<Duration>,
    },
    Resume {
        nodes: Selector,
    },
    /// A handler of the first worker takes so long.
    Stall {
        nodes: Selector,
        span: Duration,
    },
    Join {
        nodes: Selector,
        spread: Duration,
        to: Option<Selector>,
    },
    Leave {
        nodes: Selector,
        spread: Duration,
    },
    Down {
        nodes: Selector,
        by: Selector,
    },
    Partition {
        groups: Vec<Selector>,
    },
    Heal,
    Link(LinkAct),
    /// Loses the heartbeat replies it receives, and answers others.
    Deaf {
        nodes: Selector,
        span: Option<Duration>,
    },
    Clock {
        nodes: Selector,
        rate: Option<f64>,
        suspend: Option<Duration>,
    },
    Move {
        shards: Selector,
        to: Selector,
    },
}

/// A fault of links.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct LinkAct {
    pub from: Selector,
    pub to: Selector,
    /// Fraction of datagrams lost; frames of a link come late instead, as with [`NetworkSpec::loss`](super::NetworkSpec::loss). 1.0 is as `cut`: no frame
    /// comes through either, and no connection is opened, where with 0.999 each frame comes at last.
    pub loss: Option<f64>,
    pub latency: Option<Duration>,
    pub duplicate: Option<f64>,
    pub reorder: Option<f64>,
    pub cut: bool,
    pub both: bool,
    pub span: Option<Duration>,
    pub every: Option<Duration>,
    pub tcp_reset: bool,
}

const KNOWN: &[&str] = &[
    "crash",
    "restart",
    "pause",
    "resume",
    "stall",
    "join",
    "leave",
    "down",
    "partition",
    "heal",
    "link",
    "clock",
    "deaf",
    "disk",
    "move",
    "rebalance",
    "leadership",
    "store",
    "send",
];

/// Actions whose subject is still to be built, and that subject.
const ABSENT: &[(&str, &str)] = &[
    ("disk", "a disk of a node"),
    ("rebalance", "rebalancing on request"),
    ("leadership", "a leadership"),
    ("store", "the store"),
    ("send", "sending by hand"),
];

/// What the rest of the scenario leaves to an action.
pub(super) struct Bounds {
    pub nodes: u32,
    pub regions: u32,
    /// If there is a workload.
    pub shards: Option<u32>,
    pub duration: Duration,
}

impl Bounds {
    fn nodes(&self, item: &Item, field: &str) -> Result<Selector, ScenarioError> {
        let chosen = selector(item, field, self.nodes)?;
        match chosen.top_region().filter(|r| *r >= self.regions) {
            Some(r) => Err(item.error(format!("`{field}`: selector \"region:{r}\": [network] has regions 0 to {}", self.regions - 1))),
            None => Ok(chosen),
        }
    }
}

/// Reads one entry.
pub(super) fn read(item: &Item, bounds: &Bounds) -> Result<Action, ScenarioError> {
    let t = item.table("at")?;
    let what = t.get("do").ok_or_else(|| item.error("an action lacks `do`; add `do = \"crash\"` or another one"))?;
    let name = what.text("do")?;
    if !KNOWN.contains(&name) {
        return Err(what.error(format!("unknown action \"{name}\"{}", did_you_mean(name, KNOWN))));
    }
    if let Some((_, subject)) = ABSENT.iter().find(|(n, _)| *n == name) {
        return Err(what.error(format!("action \"{name}\" is not available in this version: {subject} does not exist yet")));
    }
    let time = t.get("time").ok_or_else(|| item.error(format!("action \"{name}\" lacks `time`; add `time = \"30s\"`")))?;
    let at = time.duration("time")?;
    if at > bounds.duration {
        return Err(time.error(format!("`time` is {at:?}, after the end of the run ({:?})", bounds.duration)));
    }
    let f = Fields { t, item, name, bounds };
    let act = match name {
        "crash" => f.only(&["nodes"]).and_then(|()| Ok(Act::Crash { nodes: f.nodes("nodes")? })),
        "restart" => f.only(&["nodes", "wipe"]).and_then(|()| Ok(Act::Restart { nodes: f.nodes("nodes")?, wipe: f.flag("wipe")? })),
        "pause" => f.only(&["nodes", "for"]).and_then(|()| Ok(Act::Pause { nodes: f.nodes("nodes")?, span: f.span("for")? })),
        "resume" => f.only(&["nodes"]).and_then(|()| Ok(Act::Resume { nodes: f.nodes("nodes")? })),
        "stall" => f.only(&["nodes", "for"]).and_then(|()| {
            let span = f.required("for")?.duration("for")?;
            Ok(Act::Stall { nodes: f.nodes("nodes")?, span })
        }),
        "join" => f.only(&["nodes", "spread", "to"]).and_then(|()| {
            Ok(Act::Join { nodes: f.nodes("nodes")?, spread: f.span("spread")?.unwrap_or_default(), to: f.optional("to")? })
        }),
        "leave" => f
            .only(&["nodes", "spread"])
            .and_then(|()| Ok(Act::Leave { nodes: f.nodes("nodes")?, spread: f.span("spread")?.unwrap_or_default() })),
        "down" => f
            .only(&["nodes", "by"])
            .and_then(|()| Ok(Act::Down { nodes: f.nodes("nodes")?, by: f.optional("by")?.unwrap_or(Selector::Leader) })),
        "partition" => f.only(&["groups"]).and_then(|()| {
            let groups = f.required("groups")?.list("groups")?;
            let parsed = groups.iter().map(|g| bounds.nodes(g, "groups")).collect::<Result<Vec<_>, _>>()?;
            let mut seen = BTreeSet::new();
            for (item, group) in groups.iter().zip(&parsed) {
                if let Some(twice) = group.fixed(bounds.nodes).unwrap_or_default().into_iter().find(|n| !seen.insert(*n)) {
                    return Err(item.error(format!("`groups`: node {twice} is in two groups; a node is on one side")));
                }
            }
            if parsed.iter().all(|g| g.fixed(bounds.nodes).is_some_and(|g| g.is_empty() || g.len() == bounds.nodes as usize)) {
                return Err(f
                    .required("groups")?
                    .error("`groups` cuts nothing: name a part of the nodes, as in [\"0..2\"]; the rest is a group too"));
            }
            Ok(Act::Partition { groups: parsed })
        }),
        "heal" => f.only(&[]).map(|()| Act::Heal),
        "link" => {
            const FIELDS: &[&str] = &["from", "to", "loss", "latency", "duplicate", "reorder", "cut", "both", "for", "every", "tcp_reset"];
            f.only(FIELDS).and_then(|()| f.link())
        }
        "deaf" => f.only(&["nodes", "to", "for"]).and_then(|()| f.deaf()),
        "clock" => f.only(&["nodes", "wall", "rate", "suspend"]).and_then(|()| f.clock()),
        "move" => f.only(&["shards", "to"]).and_then(|()| {
            let count = bounds.shards.ok_or_else(|| what.error("action \"move\" needs a [workload]: without one there are no shards"))?;
            let item = f.required("shards")?;
            let shards = selector(item, "shards", count)?;
            if !shards.fits_shards() {
                return Err(item
                    .error(format!("`shards` is \"{shards}\"; shards are chosen by \"3\", \"3,7\", \"10..20\", \"random:5\" or \"all\"")));
            }
            Ok(Act::Move { shards, to: f.optional("to")?.unwrap_or(Selector::Random(1)) })
        }),
        _ => Err(item.error(format!("action \"{name}\" is not available in this version"))),
    }?;
    Ok(Action { at, line: item.place.line(), act })
}

struct Fields<'a> {
    t: &'a BTreeMap<String, Item>,
    item: &'a Item,
    name: &'a str,
    bounds: &'a Bounds,
}

impl Fields<'_> {
    fn only(&self, known: &[&str]) -> Result<(), ScenarioError> {
        let all: Vec<&str> = ["time", "do"].iter().chain(known).copied().collect();
        refuse_unknown(self.t, &format!("action \"{}\"", self.name), &all)
    }

    fn required(&self, key: &str) -> Result<&Item, ScenarioError> {
        self.t.get(key).ok_or_else(|| self.item.error(format!("action \"{}\" lacks `{key}`", self.name)))
    }

    fn nodes(&self, key: &str) -> Result<Selector, ScenarioError> {
        self.bounds.nodes(self.required(key)?, key)
    }

    fn optional(&self, key: &str) -> Result<Option<Selector>, ScenarioError> {
        self.t.get(key).map(|i| self.bounds.nodes(i, key)).transpose()
    }

    fn flag(&self, key: &str) -> Result<bool, ScenarioError> {
        self.t.get(key).map_or(Ok(false), |i| i.bool(key))
    }

    fn span(&self, key: &str) -> Result<Option<Duration>, ScenarioError> {
        self.t.get(key).map(|i| i.duration(key)).transpose()
    }

    fn fraction(&self, key: &str) -> Result<Option<f64>, ScenarioError> {
        self.t.get(key).map(|i| i.number(key, 0.0, 1.0)).transpose()
    }

    fn link(&self) -> Result<Act, ScenarioError> {
        let act = LinkAct {
            from: self.nodes("from")?,
            to: self.nodes("to")?,
            loss: self.fraction("loss")?,
            latency: self.span("latency")?,
            duplicate: self.fraction("duplicate")?,
            reorder: self.fraction("reorder")?,
            cut: self.flag("cut")?,
            both: self.flag("both")?,
            span: self.span("for")?,
            every: self.span("every")?,
            tcp_reset: self.flag("tcp_reset")?,
        };
        let harmless = act.loss.is_none() && act.latency.is_none() && act.duplicate.is_none() && act.reorder.is_none();
        if harmless && !act.cut && !act.tcp_reset {
            return Err(self
                .item
                .error("action \"link\" does nothing: give `loss`, `latency`, `duplicate`, `reorder`, `cut` or `tcp_reset`"));
        }
        if let (Some(from), Some(to)) = (act.from.fixed(self.bounds.nodes), act.to.fixed(self.bounds.nodes))
            && from.iter().all(|a| to.iter().all(|b| a == b))
        {
            let what = format!("action \"link\": there is no link from \"{}\" to \"{}\"; name two different nodes", act.from, act.to);
            return Err(self.required("to")?.error(what));
        }
        let wrong = match (act.span, act.every) {
            (None, Some(_)) if !act.tcp_reset => "action \"link\": `every` needs `for`, so that the fault ends before it comes again",
            (Some(span), Some(every)) if every <= span => "action \"link\": `every` must be longer than `for`",
            (_, Some(every)) if every < Duration::from_millis(1) => "action \"link\": `every` must be at least 1ms",
            _ => return Ok(Act::Link(act)),
        };
        Err(self.required("every")?.error(wrong))
    }

    fn deaf(&self) -> Result<Act, ScenarioError> {
        if let Some(to) = self.t.get("to")
            && to.text("to")? != "replies"
        {
            return Err(to.error("`to` must be \"replies\": that is what a node can be deaf to"));
        }
        Ok(Act::Deaf { nodes: self.nodes("nodes")?, span: self.span("for")? })
    }

    fn clock(&self) -> Result<Act, ScenarioError> {
        if ["wall", "rate", "suspend"].iter().all(|key| !self.t.contains_key(*key)) {
            return Err(self.item.error("action \"clock\" does nothing: give `wall`, `rate` or `suspend`"));
        }
        if let Some(wall) = self.t.get("wall") {
            let text = wall.text("wall")?;
            let span = text.strip_prefix(['+', '-']).unwrap_or(text);
            // No core reads a wall clock, so a jump of it is checked for form and has nothing to act on.
            parse_duration(span).ok_or_else(|| wall.error(format!("`wall` is \"{text}\"; it must be a jump like \"+1h\" or \"-1h\"")))?;
        }
        Ok(Act::Clock {
            nodes: self.nodes("nodes")?,
            rate: self.t.get("rate").map(|r| r.number("rate", 0.1, 10.0)).transpose()?,
            suspend: self.span("suspend")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(text: &str) -> Result<Action, ScenarioError> {
        let doc = Item::document(&format!("[[at]]\ntime = \"3s\"\n{text}\n")).unwrap();
        let bounds = Bounds { nodes: 10, regions: 2, shards: Some(50), duration: Duration::from_secs(60) };
        read(&doc.table("").unwrap()["at"].list("at").unwrap()[0], &bounds)
    }

    #[test]
    fn each_action_has_its_fields() {
        for (text, act) in [
            ("do = \"restart\"\nnodes = \"1\"", Act::Restart { nodes: Selector::List(vec![1]), wipe: false }),
            ("do = \"pause\"\nnodes = 1\nfor = \"2s\"", Act::Pause { nodes: Selector::List(vec![1]), span: Some(Duration::from_secs(2)) }),
            ("do = \"stall\"\nnodes = 1\nfor = \"2s\"", Act::Stall { nodes: Selector::List(vec![1]), span: Duration::from_secs(2) }),
            ("do = \"down\"\nnodes = \"oldest\"", Act::Down { nodes: Selector::Oldest, by: Selector::Leader }),
            ("do = \"partition\"\ngroups = [\"0..3\"]", Act::Partition { groups: vec![Selector::Range(0, 3)] }),
            ("do = \"heal\"", Act::Heal),
            ("do = \"deaf\"\nnodes = \"3\"\nto = \"replies\"", Act::Deaf { nodes: Selector::List(vec![3]), span: None }),
            ("do = \"move\"\nshards = \"random:5\"\nto = \"3\"", Act::Move { shards: Selector::Random(5), to: Selector::List(vec![3]) }),
        ] {
            assert_eq!(read_one(text).unwrap().act, act, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        // `[[at]]` is line 1 and its time line 2; what is missing has the line of the table.
        for (text, line, what) in [
            ("do = \"store\"", 3, "the store does not exist yet"),
            ("do = \"deaf\"\nnodes = 1\nto = \"gossip\"", 5, "must be \"replies\""),
            ("do = \"crash\"", 1, "lacks `nodes`"),
            ("do = \"crash\"\nnodes = \"1\"\nspread = \"1s\"", 5, "unknown key `spread`"),
            ("do = \"crash\"\nnodes = \"region:2\"", 4, "`nodes`: selector \"region:2\": [network] has regions 0 to 1"),
            ("do = \"join\"\nnodes = \"1\"\nto = \"region:2\"", 5, "`to`: selector \"region:2\""),
            ("do = \"link\"\nfrom = \"1\"\nto = \"2\"", 1, "does nothing"),
            ("do = \"link\"\nfrom = \"1\"\nto = \"2\"\ncut = true\nevery = \"1s\"", 7, "needs `for`"),
            ("do = \"link\"\nfrom = \"1\"\nto = \"2\"\ncut = true\nevery = \"1s\"\nfor = \"1s\"", 7, "longer than `for`"),
            ("do = \"link\"\nfrom = \"1\"\nto = \"1\"\ncut = true", 5, "no link from"),
            ("do = \"partition\"\ngroups = []", 4, "cuts nothing"),
            ("do = \"partition\"\ngroups = [\"all\"]", 4, "cuts nothing"),
            ("do = \"partition\"\ngroups = [\"0..3\",\n\"region:2\"]", 5, "`groups`: selector \"region:2\""),
            ("do = \"move\"\nshards = \"60\"\nto = \"1\"", 4, "outside 0..50"),
            ("do = \"clock\"\nnodes = \"1\"\nwall = \"soon\"", 5, "a jump like"),
            ("do = \"clock\"\nnodes = \"1\"", 1, "give `wall`, `rate` or `suspend`"),
            ("do = \"partition\"\ngroups = [\"0..3\", \"2..5\"]", 4, "node 2 is in two groups"),
            ("do = \"move\"\nshards = \"leader\"\nto = \"1\"", 4, "shards are chosen by"),
        ] {
            let error = read_one(text).unwrap_err();
            assert!(error.what.contains(what), "{text}: {error}");
            assert_eq!(error.place.line(), line, "{text}: {error}");
        }
    }
}

#!/usr/bin/env python3
"""Runs splits under load, drawn by seed, and prints the runs that end badly.

    perf/random_splits.py A..B [FOLDER] [KIND ...]

Each number from A to B (excluded) is one scenario of each kind (default: all of them). It is written to FOLDER (default: target/random) and run under that
seed by the program that WINGBEAT names (default: target/release/wingbeat). One side has the majority, so it must live (but for `joins`, `leavers`, `pairs`, `holes`, `restarts` and `stalls`); nothing may run on both
sides, which is seen as all members send.

    cut      3 to 11 nodes; the cut ends about when it is judged, and mostly comes again
    few      one to twenty of 30 to 150 are cut off
    again    a third to a half of 9 to 60 are cut off; as `cut`
    paused   one of the smaller side, all of it, or every other is paused once around the cut
    stutter  the same, eight times for 1.2 to 3 s every 4 s
    leaky    a cut that leaves one to four links
    pairs    one to three pairs that do not reach each other, for good, as others reach both; shards move, some join, leave, crash or are paused
    holes    a tenth to a half of all links are cut one way; shards move, some join, leave, restart, crash, are paused or have links reset
    restarts no cut; members restart, crash and are paused one after the other while shards move
    stalls   no cut; coordinators and others leave, crash and restart while workers stand still and shards move
    joins    two cuts in a row, each by other lines at times, beside which members join; some leave, crash or are paused; all strategies, up to 30 % loss
    leavers  as `joins`, and most that join are told to leave before long, up or not

Printed are runs in which nobody lives, two sides do, or an invariant is broken. The last is not excluded where a cut ends for some seconds over lossy
links: one side may have noticed it, and the other not (the guide says so).
"""
import json
import os
import pathlib
import random
import subprocess
import sys

# `downing.stable_after` by size, in heartbeats.
STABLE = [(5, 7), (10, 10), (20, 13), (50, 17), (100, 20)]


def stable_after(nodes):
    last = STABLE[0]
    for size, beats in STABLE:
        if nodes <= size:
            return last[1] + max(0, nodes - last[0]) / max(1, size - last[0]) * (beats - last[1])
        last = (size, beats)
    return last[1]


def names(nodes):
    return json.dumps(",".join(map(str, sorted(nodes))))


class Split:
    """Who is cut off from whom, in how good a network, and what is done when."""

    def __init__(self, less, more, loss, latency="1ms"):
        self.less, self.more, self.loss, self.latency, self.events = less, more, loss, latency, []
        self.started, self.settings = len(less) + len(more), ['"membership.on_downed" = "stop"']

    def at(self, seconds, **action):
        self.events.append((seconds, [f"{key.rstrip('_')} = {value if key.endswith('_') else json.dumps(value)}" for key, value in action.items()]))

    def cut(self, seconds, less=None, more=None):
        self.at(seconds, do="partition", groups_=f"[{names(less or self.less)}, {names(more or self.more)}]")

    def scenario(self, name, lasts):
        nodes = len(self.less) + len(self.more)
        lines = [f'name = "{name}"', f"nodes = {nodes}", f"started = {self.started}", 'start_spread = "300ms"', f'duration = "{lasts + 10:.0f}s"']
        lines += ["[config]", *self.settings, "[network]", f"loss = {self.loss}", f'latency = "{self.latency}"']
        lines += ["[workload]", f"entities = {max(30, 3 * nodes)}", f"shards = {max(10, nodes)}", f"senders = {nodes}", "rate = 40"]
        lines += ['from = "10s"', f'until = "{lasts:.0f}s"']
        for seconds, action in sorted(self.events):
            lines += ["[[at]]", f'time = "{seconds:.3f}s"'] + action
        return "\n".join(lines + ["[expect]", "survivor_groups = 1"]) + "\n"


def sides(r, nodes, less):
    ids = list(range(nodes))
    r.shuffle(ids)
    return ids[:less], ids[less:]


def judged(split):
    """A loss is seen after three heartbeats and a half."""
    return 33.5 + stable_after(len(split.less) + len(split.more))


def comes_again(r, split):
    heal = judged(split) + r.uniform(-6, 2)
    split.cut(30)
    split.at(heal, do="heal")
    if r.random() < 0.75:
        again = heal + r.choice([0.3, 0.6, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6])
        split.cut(again)
        split.at(again + 30, do="heal")
    return heal + 60


def cut(r):
    less = r.choice([1, 1, 2, 2, 3, 4])
    split = Split(*sides(r, 2 * less + 1 + r.choice([0, 0, 1, 2]), less), r.choice([0, 0.02, 0.05, 0.1, 0.15]))
    return split, comes_again(r, split)


def again(r):
    nodes = r.choice([9, 20, 30, 60])
    split = Split(*sides(r, nodes, r.randint(nodes // 3, (nodes - 1) // 2)), r.choice([0, 0, 0.05]), r.choice(["0.3ms", "1ms", "20ms"]))
    return split, comes_again(r, split)


def few(r):
    nodes = r.choice([30, 60, 79, 100, 150])
    split = Split(*sides(r, nodes, r.randint(1, min(20, nodes // 3))), r.choice([0, 0, 0.05, 0.1, 0.2]), r.choice(["0.3ms", "1ms", "20ms"]))
    split.cut(30)
    return split, judged(split) + 40


def pausing(r, times):
    nodes = r.choice([5, 7, 9, 20, 30, 60])
    split = Split(*sides(r, nodes, r.randint(2, min(14, (nodes - 1) // 2))), r.choice([0, 0, 0.1]))
    who = r.choice([split.less[:1], split.less, split.less[::2]])
    begins = r.uniform(27, judged(split) + 2)
    split.cut(30)
    for at in times:
        span = r.choice([3, 5, 8, 12, 20, 28]) if len(times) == 1 else r.uniform(1.2, 3)
        split.at(begins + at, do="pause", nodes_=names(who), for_=f'"{span:.2f}s"')
    return split, judged(split) + 75


def paused(r):
    return pausing(r, [0])


def stutter(r):
    return pausing(r, range(0, 32, 4))


def leaky(r):
    nodes = r.choice([8, 12, 20, 30, 60])
    split = Split(*sides(r, nodes, r.randint(2, (nodes - 1) // 2)), 0, r.choice(["0.3ms", "1ms", "20ms"]))
    left = {(r.choice(split.less), r.choice(split.more)) for _ in range(r.choice([1, 1, 2, 4]))}
    for a in split.less:
        split.at(30, do="link", from_=f'"{a}"', to_=names(b for b in split.more if (a, b) not in left), cut=True, both=True)
    return split, judged(split) + 50


def incidents(r, split, until, leaves, pauses):
    """At times one leaves, one is paused and one crashes."""
    if r.random() < leaves:
        split.at(r.uniform(20, until), do="leave", nodes=str(r.randrange(1, split.started)))
    if r.random() < pauses:
        split.at(r.uniform(20, until), do="pause", nodes=str(r.randrange(split.started)), for_=f'"{r.choice([2, 6, 14])}s"')
    if r.random() < 0.3:
        split.at(r.uniform(20, until), do="crash", nodes=str(r.randrange(1, split.started)))


def pairs(r):
    started = r.choice([4, 5, 7, 10, 20])
    nodes = started + r.choice([0, 1, 3])
    split = Split(*sides(r, nodes, 1), r.choice([0, 0, 0.02, 0.1]), r.choice(["0.3ms", "1ms", "20ms"]))
    split.started = started
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        a, b = r.sample(range(nodes), 2)
        split.at(r.uniform(15, 45), do="link", from_=f'"{a}"', to_=f'"{b}"', cut=True, both=r.random() < 0.7)
    for joiner in range(started, nodes):
        split.at(r.uniform(20, 80), do="join", nodes=str(joiner))
    incidents(r, split, 80, 0.5, 0.5)
    for _ in range(r.choice([0, 0, 3, 10])):
        split.at(r.uniform(20, 90), do="move", shards=str(r.randrange(max(10, nodes))), to=str(r.randrange(started)))
    if r.random() < 0.3:
        split.at(r.uniform(60, 120), do="heal")
    return split, 150


def holes(r):
    started = r.choice([3, 4, 5, 6, 8, 12])
    nodes = started + r.choice([0, 0, 1, 2])
    split = Split(*sides(r, nodes, 1), r.choice([0, 0, 0.02, 0.1]), r.choice(["0.3ms", "1ms", "20ms"]))
    split.started = started
    strategy = r.choice(["keep-majority"] * 4 + ["keep-oldest", "static-quorum", "lease-majority"])
    split.settings.append(f'"downing.strategy" = "{strategy}"')
    if strategy == "static-quorum":
        split.settings.append(f'"downing.quorum_size" = {started // 2 + 1}')
    if r.random() < 0.4:
        split.settings.append(f'"sharding.handoff_timeout" = "{r.choice(["300ms", "1s", "3s", "10s"])}"')
    if r.random() < 0.3:
        split.settings.append('"sharding.rebalance_interval" = "2s"')
    if r.random() < 0.3:
        split.settings.append('"cluster.preset" = "local_test"')
    share = r.choice([0.1, 0.2, 0.35, 0.5])
    for a in range(nodes):
        for b in range(nodes):
            if a != b and r.random() < share:
                split.at(r.choice([30, r.uniform(20, 60)]), do="link", from_=f'"{a}"', to_=f'"{b}"', cut=True, both=False)
    for joiner in range(started, nodes):
        split.at(r.uniform(20, 70), do="join", nodes=str(joiner))
    if r.random() < 0.4:
        split.at(r.uniform(20, 80), do="pause", nodes=str(r.randrange(started)), for_=f'"{r.choice([2, 6, 14])}s"')
    if r.random() < 0.3:
        split.at(r.uniform(20, 80), do="crash", nodes=str(r.randrange(1, started)))
    if r.random() < 0.3:
        split.at(r.uniform(20, 80), do="leave", nodes=str(r.randrange(1, started)))
    for _ in range(r.choice([0, 5, 20])):
        split.at(r.uniform(15, 110), do="move", shards=str(r.randrange(max(10, nodes))), to=str(r.randrange(started)))
    for _ in range(r.choice([0, 0, 3])):
        split.at(r.uniform(20, 110), do="restart", nodes=str(r.randrange(1, started)))
    for _ in range(r.choice([0, 0, 6])):
        a, b = r.sample(range(started), 2)
        split.at(r.uniform(20, 110), do="link", from_=f'"{a}"', to_=f'"{b}"', tcp_reset=True)
    if r.random() < 0.7:
        split.at(r.uniform(40, 100), do="heal")
    return split, 140


def restarts(r):
    started = r.choice([3, 4, 5, 7])
    nodes = started + r.choice([0, 1])
    shards = max(10, nodes)
    split = Split(*sides(r, nodes, 1), r.choice([0, 0, 0.02, 0.1]), r.choice(["0.3ms", "1ms", "20ms"]))
    split.started = started
    if r.random() < 0.6:
        split.settings.append('"cluster.preset" = "local_test"')
    if r.random() < 0.5:
        split.settings.append('"sharding.rebalance_interval" = "2s"')
    at = 20
    while at < 110:
        node, what = str(r.randrange(1, started)), r.choice(["restart"] * 3 + ["pause", "crash"])
        if what == "pause":
            split.at(at, do="pause", nodes=node, for_=f'"{r.choice([2, 6])}s"')
        if what == "crash":
            split.at(at, do="crash", nodes=node)
        if what != "pause":
            split.at(at + (r.uniform(1, 12) if what == "crash" else 0), do="restart", nodes=node)
        at += r.choice([3, 8, 13, 20])
    for _ in range(r.choice([5, 20, 60])):
        split.at(r.uniform(15, 120), do="move", shards=r.choice([str(r.randrange(shards)), f"0..{shards}"]), to=str(r.randrange(started)))
    for joiner in range(started, nodes):
        split.at(r.uniform(20, 90), do="join", nodes=str(joiner))
    return split, 140


def stalls(r):
    started = r.choice([3, 4, 5, 7])
    shards = max(10, started)
    split = Split(*sides(r, started, 1), r.choice([0, 0, 0.02]), r.choice(["0.3ms", "1ms", "20ms"]))
    split.settings.append(f'"node.workers" = {r.choice([1, 2, 2])}')
    if r.random() < 0.5:
        split.settings.append('"cluster.preset" = "local_test"')
    if r.random() < 0.5:
        split.settings.append('"sharding.rebalance_interval" = "2s"')
    at = 20
    while at < 110:
        for _ in range(r.choice([0, 1, 1, 2])):
            split.at(at - r.uniform(0, 3), do="stall", nodes=r.choice(["random:1", "random:1", "oldest"]), for_=f'"{r.choice([1, 4, 10, 30])}s"')
        node, what = r.choice([0, r.randrange(started)]), r.choice(["restart", "restart", "crash", "leave"])
        split.at(at, do=what, nodes=str(node))
        if what != "restart":
            split.at(at + r.uniform(3, 15), do="restart", nodes=str(node))
        at += r.choice([5, 8, 13, 20])
    for _ in range(r.choice([5, 20, 60])):
        split.at(r.uniform(15, 120), do="move", shards=r.choice([str(r.randrange(shards)), f"0..{shards}"]), to=str(r.randrange(started)))
    return split, 160


def joins(r):
    started = r.choice([3, 5, 7, 9, 12, 12, 20])
    nodes = started + r.choice([1, 2, 4, 8, 12])
    split = Split(*sides(r, nodes, r.randint(1, nodes // 2)), r.choice([0, 0.05, 0.15, 0.3, 0.3]), r.choice(["0.3ms", "1ms", "5ms", "20ms"]))
    split.started = started
    strategy = r.choice(["keep-majority"] * 4 + ["keep-oldest", "static-quorum", "lease-majority", "keep-referee"])
    split.settings.append(f'"downing.strategy" = "{strategy}"')
    if strategy == "static-quorum":
        split.settings.append(f'"downing.quorum_size" = {started // 2 + 1}')
    if strategy == "keep-referee":
        split.settings.append('"downing.referee" = "n00000:7301"')
    if r.random() < 0.3:
        split.settings.append(f'"membership.weakly_up_after" = "{r.choice([2, 4])}s"')
    if r.random() < 0.2:
        split.settings.append('"membership.converge_past_unreachable" = true')
    split.cut(30)
    heal = r.choice([35, 42, judged(split) + r.uniform(-3, 3), judged(split) + 8])
    split.at(heal, do="heal")
    if r.random() < 0.8:
        again = heal + r.choice([0.3, 0.6, 1, 2, 4, 8])
        split.cut(again, *(sides(r, nodes, r.randint(1, nodes - 1)) if r.random() < 0.6 else ()))
        split.at(again + r.choice([8, 20, 34]), do="heal")
    for joiner in range(started, nodes):
        beside = [node for node in range(started) if (node in split.less) == (joiner in split.less)] or [0]
        split.at(r.uniform(20, 50), do="join", nodes=str(joiner), to=str(r.choice(beside)))
    incidents(r, split, 70, 0.4, 0.3)
    return split, 180


def leavers(r):
    split, lasts = joins(r)
    for seconds, action in [event for event in split.events if 'do = "join"' in event[1]]:
        if r.random() < 0.6:
            nodes = next(line for line in action if line.startswith("nodes"))
            split.events.append((seconds + r.choice([0.5, 2, 5, 9, 15]), ['do = "leave"', nodes]))
    return split, lasts


KINDS = {kind.__name__: kind for kind in [cut, few, again, paused, stutter, leaky, pairs, holes, restarts, stalls, joins, leavers]}


def main():
    first, last = map(int, sys.argv[1].split(".."))
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "target/random")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[3:] or list(KINDS)
    if unknown := [name for name in wanted if name not in KINDS]:
        sys.exit(f"no kind is named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    program = os.environ.get("WINGBEAT", "target/release/wingbeat")
    for name in wanted:
        nobody, apart, broken, living, longest = 0, 0, 0, 0, 0
        for number in range(first, last):
            split, lasts = KINDS[name](random.Random(f"{name} {number}"))
            path = folder / f"{name}-{number}.toml"
            path.write_text(split.scenario(f"{name}-{number}", lasts))
            ran = subprocess.run([program, "sim", str(path), "--seed", str(number), "--json"], capture_output=True, text=True)
            if ran.returncode not in (0, 3):
                sys.exit(f"{path}: {ran.stderr.strip()}")
            result = json.loads(ran.stdout)
            invariants = sorted({violation["invariant"] for violation in result["violations"]})
            nobody += result["survivors"] == 0
            apart += result["survivor_groups"] > 1
            broken += bool(invariants)
            living += result["survivors"]
            longest = max(longest, result["dual_active_s"])
            if result["survivor_groups"] != 1 or invariants:
                found = f"{result['survivors']} of {result['nodes']} live in {result['survivor_groups']} groups {' '.join(invariants)}"
                print(f"{path}: {found}, both sides ran for {result['dual_active_s']:.1f} s", flush=True)
        summary = f"nobody lives in {nobody}, two sides in {apart}, an invariant is broken in {broken}; {living} nodes live in all"
        print(f"{name}: {last - first} run: {summary}; both sides ran for {longest:.1f} s at most", flush=True)


if __name__ == "__main__":
    main()

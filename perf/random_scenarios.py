#!/usr/bin/env python3
"""Runs scenarios drawn by seed and prints those that do not hold.

    perf/random_scenarios.py A..B [FOLDER]

Each number from A to B (excluded) is one scenario: size, strategy, settings, network, load and faults are drawn from it, so it is the same
everywhere. It is written to FOLDER (default: target/random) and run under seed 1 by the program that WINGBEAT names (default:
target/release/wingbeat). It must keep the invariants, lose, double and reorder nothing, and all that live must be one cluster in the end.

Not every run that is printed is a fault: a first seed that starts again in a partition, and hears nobody, founds a cluster of its own; an operator's
`down` in a partition counts as an oath that the node is dead; and where the first seed never comes back nobody may found a cluster. Runs that
end with nobody in a cluster are only counted, for that reason.
"""
import json
import os
import pathlib
import random
import subprocess
import sys

SETTLE = 160  # Seconds after the last fault is healed.


def settings(r, nodes, started):
    """The section [config]."""
    config = {"membership.on_downed": "rejoin" if r.random() < 0.7 else "stop"}
    strategy = r.choice(["keep-majority"] * 4 + ["static-quorum", "keep-oldest", "keep-oldest", "down-all", "lease-majority"])
    config["downing.strategy"] = strategy
    if strategy == "static-quorum":
        config["downing.quorum_size"] = nodes // 2 + 1
    if strategy == "keep-oldest":
        config["downing.down_if_alone"] = r.random() < 0.5
    for share, key, values in [
        (0.3, "downing.stable_after", ["3s", "5s", "10s", "20s"]),
        (0.25, "downing.proof_of_death", [True]),
        (0.25, "detector.verdict", ["quorum", "one", "pooled"]),
        (0.2, "membership.converge_past_unreachable", [True]),
        (0.15, "detector.heartbeat_interval", ["200ms", "500ms", "2s"]),
        (0.15, "membership.gossip_interval", ["200ms", "500ms", "2s"]),
        (0.15, "membership.weakly_up_after", ["2s", "5s"]),
        (0.2, "sharding.rebalance_interval", ["2s", "5s"]),
        (0.2, "sharding.buffer_messages", [10, 100, 1000]),
        (0.15, "sharding.passivate_after", ["2s", "10s"]),
        (0.15, "cluster.min_members", [max(1, started // 2)]),
        (0.1, "membership.deputies", [0, 1, 3]),
        (0.1, "cluster.preset", ["lan", "wan", "local_test"]),
    ]:
        if r.random() < share:
            config[key] = r.choice(values)
    return config


def network(r):
    """The section [network]."""
    lines = {"latency": r.choice(["0.1ms", "1ms", "10ms", "50ms"]), "jitter": r.choice(["0ms", "0.2ms", "3ms", "10ms"])}
    lines["loss"] = r.choice([0, 0, 0, 0.01, 0.05, 0.15])
    if r.random() < 0.2:
        lines["duplicate"] = r.choice([0.01, 0.2])
    if r.random() < 0.2:
        lines |= {"reorder": r.choice([0.01, 0.2]), "reorder_by": "300ms"}
    return lines


def parts(r, nodes):
    """Two or three groups, at times one less than that: those in no group form one more."""
    ids = list(range(nodes))
    r.shuffle(ids)
    cuts = sorted(r.sample(range(1, nodes), min(r.randint(1, 2), nodes - 1)))
    groups = [ids[a:b] for a, b in zip([0] + cuts, cuts + [nodes])]
    if r.random() < 0.3 and len(groups) > 1:
        groups.pop()
    return [",".join(map(str, sorted(group))) for group in groups]


def link(r, nodes):
    fault = {"do": "link", "from": r.choice(["all", "random:1"]), "to": str(r.randrange(nodes)), "both": r.random() < 0.5}
    fault |= r.choice(
        [{"cut": True}, {"loss": r.choice([0.2, 0.5, 0.8])}, {"latency": r.choice(["20ms", "200ms", "1s"])}, {"tcp_reset": True, "cut": True}, {"duplicate": 0.3}]
    )
    if r.random() < 0.4:
        fault["for"] = r.choice(["1s", "3s", "10s"])
        if r.random() < 0.5:
            fault["every"] = r.choice(["12s", "20s"])
    return fault


def faults(r, nodes, started, end):
    """What happens until `end`, as (time, action)."""
    t, found, waiting = 30.0, [], list(range(started, nodes))
    some = lambda: r.choice([f"random:{r.randint(1, max(1, nodes // 3))}", "random:1", "random:1", str(r.randrange(nodes)), "leader", "oldest", "youngest", "coordinator"])
    kinds = ["crash", "restart", "both", "pause", "join", "leave", "down", "partition", "partition", "heal", "link", "link", "clock", "deaf", "move", "move", "move"]
    for _ in range(r.randint(3, 14)):
        t += r.choice([0, 0.05, 0.3, 1, 3, 7, 12, 25])
        if t >= end - 5:
            break
        kind = r.choice(kinds)
        if kind in ("crash", "restart"):
            found.append((t, {"do": kind, "nodes": some()}))
        elif kind == "both":
            one = str(r.randrange(started))
            found += [(t, {"do": "crash", "nodes": one}), (t + r.choice([0.01, 0.5, 3, 10, 30]), {"do": "restart", "nodes": one})]
        elif kind == "pause":
            found.append((t, {"do": "pause", "nodes": some(), "for": r.choice(["0.5s", "2s", "5s", "10s", "30s"])}))
        elif kind == "join" and waiting:
            found.append((t, {"do": "join", "nodes": str(waiting.pop(0))}))
        elif kind == "leave":
            found.append((t, {"do": "leave", "nodes": r.choice(["random:1", "leader", "oldest", "coordinator", "youngest"])}))
        elif kind == "down":
            found.append((t, {"do": "down", "nodes": "random:1"}))
        elif kind == "partition":
            found.append((t, {"do": "partition", "groups": parts(r, nodes)}))
            if r.random() < 0.6:
                found.append((t + r.choice([1, 4, 8, 15, 40]), {"do": "heal"}))
        elif kind == "heal":
            found.append((t, {"do": "heal"}))
        elif kind == "link":
            found.append((t, link(r, nodes)))
        elif kind == "clock":
            change = r.choice([{"wall": "+1h"}, {"wall": "-1h"}, {"rate": 1.02}, {"rate": 0.98}, {"suspend": r.choice(["3s", "20s"])}])
            found.append((t, {"do": "clock", "nodes": some()} | change))
        elif kind == "deaf":
            found.append((t, {"do": "deaf", "nodes": "random:1", "to": "replies", "for": r.choice(["3s", "20s"])}))
        elif kind == "move":
            for i in range(r.choice([1, 1, 3])):
                found.append((t + i * 0.02, {"do": "move", "shards": f"random:{r.choice([1, 2, 4])}", "to": r.choice(["random:1", "random:2", str(r.randrange(started))])}))
    return found + [(end, {"do": "heal"})]


def scenario(number):
    r = random.Random(number)
    nodes = r.choice([2, 3, 4, 5, 5, 6, 7, 7, 9, 12, 15, 20, 30])
    started = nodes if r.random() < 0.6 else r.randint(max(1, nodes // 2), nodes)
    end = r.choice([120, 160, 240])
    top = {"name": f"random-{number}", "nodes": nodes, "started": started, "seeds": r.choice([1, 1, min(2, nodes), min(3, nodes)])}
    top |= {"start_spread": r.choice(["0s", "1s", "5s", "300ms"]), "duration": f"{end + SETTLE}s"}
    # All send: two homes of a shard are only seen where both are asked for something. What is drawn after that stays what it was.
    load = {"entities": r.choice([1, 20, 200]), "shards": r.choice([4, 16, 64]), "senders": max(started, r.randint(1, min(5, started))), "rate": r.choice([20, 100, 300])}
    load |= {"mode": r.choice(["tell", "tell", "ask"]), "from": "12s", "until": f"{end + SETTLE - 10}s"}
    expect = {"max_dual_active": "0s", "lost": 0, "reordered": 0, "duplicated": 0, "converged_by": f"{end + SETTLE - 10}s"}
    table = lambda values: [f"{json.dumps(key) if '.' in key else key} = {json.dumps(value)}" for key, value in values.items()]
    lines = table(top) + ["[config]"] + table(settings(r, nodes, started)) + ["[network]"] + table(network(r)) + ["[workload]"] + table(load)
    for at, action in faults(r, nodes, started, end):
        lines += ["[[at]]", f'time = "{at:.3f}s"'] + table(action)
    return "\n".join(lines + ["[expect]"] + table(expect)) + "\n"


def main():
    first, last = map(int, sys.argv[1].split(".."))
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "target/random")
    folder.mkdir(parents=True, exist_ok=True)
    program, nobody, bad = os.environ.get("WINGBEAT", "target/release/wingbeat"), 0, 0
    for number in range(first, last):
        path = folder / f"{number}.toml"
        path.write_text(scenario(number))
        ran = subprocess.run([program, "sim", str(path), "--seed", "1", "--json"], capture_output=True, text=True)
        if ran.returncode not in (0, 3):
            sys.exit(f"{path}: {ran.stderr.strip()}")
        result = json.loads(ran.stdout)
        wrong = result["failed"] + sorted({violation["invariant"] for violation in result["violations"]})
        if wrong == ["converged_by"] and result["survivors"] == 0:
            nobody += 1
        elif wrong:
            bad += 1
            print(f"{path}: {', '.join(wrong)}; {result['survivors']} live in {result['survivor_groups']} groups", flush=True)
    print(f"{last - first} run, {bad} do not hold, {nobody} end without a cluster")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs mixes of everything a scenario file can say, drawn by number, and prints those that do not hold.

    perf/random_mixes.py A..B [FOLDER [KINDS]]

Wider than random_scenarios.py, and rougher: every action and selector, all strategies and verdicts, presets, regions, bursts, clocks, deaf nodes, moves;
then everything is healed, and who is not running is started, twice. Each number from A to B (excluded) is one file, written to FOLDER (default:
target/mixes) and kept there if its run does not hold, or ends in an error. With KINDS, like leave,pause,restart,crash,move, the files are others: of two
to eight nodes, with up to twelve of those actions alone. WINGBEAT names the program (default: target/release/wingbeat).

Many that are printed are no fault: who was removed may stay away when it ends after the last start, and a first seed that starts in a partition founds
a cluster of its own. Worth a look is whatever panics, hangs, breaks an invariant without such a start, or never becomes one cluster.
"""
import json
import os
import pathlib
import random
import subprocess
import sys


def config(r, n):
    strategy = r.choices(
        ["keep-majority", "static-quorum", "keep-oldest", "keep-referee", "down-all", "lease-majority", "none"], [8, 2, 2, 2, 1, 3, 1]
    )[0]
    lines = [f'"downing.strategy" = "{strategy}"']
    if strategy == "static-quorum":
        lines.append(f'"downing.quorum_size" = {n // 2 + 1}')
    if strategy == "keep-referee":
        lines.append('"downing.referee" = "n00000:7301"')
    if strategy == "keep-oldest" and r.random() < 0.5:
        lines.append(f'"downing.down_if_alone" = {r.choice(["true", "false"])}')
    if r.random() < 0.5:
        lines.append('"membership.on_downed" = "rejoin"')
    if r.random() < 0.2:
        lines.append('"membership.converge_past_unreachable" = true')
    if r.random() < 0.15:
        lines.append(f'"detector.monitors" = {r.choice([3, 7, 9])}')
    if r.random() < 0.25:
        lines.append(f'"detector.verdict" = "{r.choice(["pooled", "quorum", "one"])}"')
    if r.random() < 0.15:
        lines.append(f'"membership.deputies" = {r.choice([0, 1, 4])}')
    if r.random() < 0.15:
        lines.append(f'"cluster.preset" = "{r.choice(["local_test", "wan"])}"')
    if r.random() < 0.15:
        lines.append('"membership.weakly_up_after" = "3s"')
    return lines


def network(r, n):
    lines = [f'latency = "{r.choice(["0.2ms", "1ms", "10ms"])}"']
    if r.random() < 0.4:
        lines.append(f"loss = {r.choice([0.01, 0.05, 0.1])}")
    if r.random() < 0.2:
        lines.append("duplicate = 0.1")
    if r.random() < 0.2:
        lines += ["reorder = 0.2", 'reorder_by = "200ms"']
    if r.random() < 0.1:
        lines.append("burst = { bad = 0.02, mean = 20, loss = 0.7 }")
    if r.random() < 0.15 and n >= 3:
        regions = r.choice([2, 3])
        rows = [[f"{1 if i == j else r.choice([20, 80, 150])}ms" for j in range(regions)] for i in range(regions)]
        lines += [f"regions = {regions}", f"region_latency = {json.dumps(rows)}"]
    return lines


def selector(r, n):
    kind, most = r.random(), max(1, n // 3)
    if kind < 0.35:
        return f"random:{r.randint(1, most)}"
    if kind < 0.5:
        return str(r.randrange(n))
    if kind < 0.6:
        return r.choice(["leader", "oldest", "youngest", "coordinator"])
    if kind < 0.8:
        first = r.randrange(n)
        return f"{first}..{r.randint(first + 1, min(n, first + most))}"
    if kind < 0.85:
        return f"ring:{r.randint(1, most)}"
    if kind < 0.9:
        return f"random:{r.randint(1, most)} - leader"
    return ",".join(str(x) for x in sorted(r.sample(range(n), min(n, r.randint(1, most)))))


def link(r, n):
    ends = (["all", str(r.randrange(n))], [str(r.randrange(n)), "all"], [str(x) for x in r.sample(range(n), 2)])
    a, b = r.choices(ends, [3, 3, 4])[0]
    what = r.choices([["cut = true"], [f"loss = {r.choice([0.3, 0.8, 1.0])}"], ['latency = "300ms"'], ["duplicate = 0.5", "reorder = 0.5"]], [8, 6, 3, 3])[0]
    lines = [f'from = "{a}"', f'to = "{b}"', *what]
    if r.random() < 0.4:
        lines.append("both = true")
    if r.random() < 0.3:
        lines.append("tcp_reset = true")
    if r.random() < 0.6:
        span = r.choice([2, 5, 12])
        lines.append(f'for = "{span}s"')
        if r.random() < 0.5:
            lines.append(f'every = "{span + r.choice([1, 5, 20])}s"')
    return lines


def fields(r, kind, n, started):
    """What an action of that kind says, but for its time; `None` where there is nothing to do it with."""
    those = lambda: [f'nodes = "{selector(r, n)}"']
    if kind in ("crash", "restart", "resume"):
        return those()
    if kind == "pause":
        return those() + ([f'for = "{r.choice([1, 3, 8, 15, 30])}s"'] if r.random() < 0.8 else [])
    if kind == "join":
        new = f"{started}..{n}" if started < n else selector(r, n)
        to = [f'to = "{r.choice(["leader", "youngest", "random:1"])}"'] if r.random() < 0.3 else []
        return [f'nodes = "{new}"', f'spread = "{r.choice([0, 2, 10])}s"', *to]
    if kind == "leave":
        return those() + [f'spread = "{r.choice([0, 3])}s"']
    if kind == "down":
        return those() + ([f'by = "{r.choice(["youngest", "random:1", "oldest"])}"'] if r.random() < 0.5 else [])
    if kind == "deaf":
        return those() + ['to = "replies"'] + (['for = "10s"'] if r.random() < 0.5 else [])
    if kind == "clock":
        return those() + [r.choice([f'suspend = "{r.choice([5, 60])}s"', f"rate = {r.choice([0.95, 1.05])}", 'wall = "-1h"'])]
    if kind == "move":
        return ['shards = "random:2"', f'to = "{selector(r, n)}"']
    if n < 2:
        return None
    if kind == "link":
        return link(r, n)
    cut = r.randint(1, n - 1)
    groups = [f"random:{cut}"] if r.random() < 0.3 else [f"0..{cut}"]
    if groups[0].startswith("0") and r.random() < 0.3 and cut < n - 1:
        groups.append(f"{cut}..{r.randint(cut + 1, n)}")
    return [f"groups = {json.dumps(groups)}"]


def mix(number, only=()):
    """The file of that number, with those kinds of actions or with all."""
    r = random.Random(f"mix {number}" + "".join(f" {kind}" for kind in only))
    n = r.randint(2, 8) if only else r.choice([1, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30])
    started = n if only or r.random() < 0.6 else r.randint(max(1, n // 2), n)
    seeds = r.randint(1, min(n, 3)) if r.random() < 0.5 else 1
    healed = r.choice([60, 100, 150])
    end = healed + 240
    lines = [
        f'name = "mix-{number}"', f"nodes = {n}", f"started = {started}", f"seeds = {seeds}",
        f'start_spread = "{r.choice(["0s", "1s", "10s"])}"', f"seed = {r.randint(1, 1000)}", f'duration = "{end}s"',
        "[config]", *config(r, n), "[network]", *network(r, n),
    ]
    load = only or r.random() < 0.8
    if load:
        lines += [
            "[workload]", f"entities = {r.choice([5, 30, 100])}", f"shards = {r.choice([3, 10, 24])}", f"senders = {r.randint(1, min(n, 5))}",
            f"rate = {r.choice([20, 100, 200])}", f'mode = "{r.choice(["tell", "ask"])}"', 'from = "10s"', f'until = "{end - 20}s"',
        ]
    all_kinds = ["crash", "restart", "pause", "resume", "join", "leave", "down", "partition", "heal", "link", "clock", "deaf"]
    kinds = only or r.sample(all_kinds + (["move"] if load else []), r.randint(2, 6))
    actions = []
    for _ in range(r.randint(2, 12) if only else r.randint(1, 10)):
        kind, time = r.choice(kinds), round(r.uniform(15, healed - 1), r.choice([0, 1, 3]))
        said = [] if kind == "heal" else fields(r, kind, n, started)
        if said is not None:
            actions.append((time, kind, said))
    actions += [(healed, "heal", []), (healed, "resume", ['nodes = "all"'])]
    actions += [(healed + later, "join", ['nodes = "all"']) for later in (70, 110)]
    for time, kind, said in sorted(actions, key=lambda action: action[0]):
        lines += ["[[at]]", f'time = "{time}s"', f'do = "{kind}"', *said]
    lines += [
        "[expect]", 'max_dual_active = "0s"', "lost = 0", "reordered = 0", "duplicated = 0", f"survivors = {n}", "survivor_groups = 1",
        f"members_up = {n}", f'all_reachable_by = "{healed + 200}s"',
    ]
    return "\n".join(lines) + "\n"


def main():
    first, last = (int(x) for x in sys.argv[1].split(".."))
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "target/mixes")
    folder.mkdir(parents=True, exist_ok=True)
    only = sys.argv[3].split(",") if len(sys.argv) > 3 else ()
    program = os.environ.get("WINGBEAT", "target/release/wingbeat")
    held = 0
    for number in range(first, last):
        file = folder / f"mix-{number}.toml"
        file.write_text(mix(number, only))
        try:
            run = subprocess.run([program, "sim", file, "--json"], capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            print(f"{file}: no end within 300 s", flush=True)
            continue
        if run.returncode == 0:
            held += 1
            file.unlink()
        elif run.returncode == 3:
            result = json.loads(run.stdout.splitlines()[0])
            broken = sorted({v["invariant"] for v in result["violations"]})
            print(f"{file}: {result['nodes']} nodes, broken {broken}, failed {result['failed_why']}", flush=True)
        else:
            print(f"{file}: status {run.returncode}: {run.stderr[:300]}", flush=True)
    print(f"{held} of {last - first} hold")


if __name__ == "__main__":
    main()

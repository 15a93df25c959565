#!/usr/bin/env python3
"""Runs one cut that ends about when it is judged, and mostly comes again, drawn by seed, and prints the runs that end badly.

    perf/random_cuts.py A..B [FOLDER]

Each number from A to B (excluded) is one scenario: sizes of both sides, loss, when the cut ends and for how long. It is written to FOLDER (default:
target/random) and run under that seed by the program that WINGBEAT names (default: target/release/wingbeat). One side has the majority, so it must
live; nothing may run on both sides.

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
STABLE = [(5, 7), (10, 10), (20, 13), (50, 17)]


def stable_after(nodes):
    last = STABLE[0]
    for size, beats in STABLE:
        if nodes <= size:
            return last[1] + max(0, nodes - last[0]) / max(1, size - last[0]) * (beats - last[1])
        last = (size, beats)
    return last[1]


def scenario(number):
    r = random.Random(number)
    less = r.choice([1, 1, 2, 2, 3, 4])
    nodes = 2 * less + 1 + r.choice([0, 0, 1, 2])
    ids = list(range(nodes))
    r.shuffle(ids)
    groups = json.dumps([",".join(map(str, ids[:less])), ",".join(map(str, ids[less:]))])
    # A loss is seen after three heartbeats and a half.
    heal = 33.5 + stable_after(nodes) + r.uniform(-6, 2)
    again = heal + r.choice([0.3, 0.6, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6])
    cut = f'do = "partition"\ngroups = {groups}'
    events = [(30, cut), (heal, 'do = "heal"')]
    if r.random() < 0.75:
        events += [(again, cut), (again + 20, 'do = "heal"')]
    head = f"""name = "cut-{number}"
nodes = {nodes}
start_spread = "300ms"
duration = "{heal + 60:.0f}s"
[config]
"membership.on_downed" = "stop"
[network]
loss = {r.choice([0, 0.02, 0.05, 0.1, 0.15])}
[workload]
entities = 30
shards = 10
senders = 2
rate = 20
from = "10s"
until = "{heal + 50:.0f}s"
"""
    return head + "".join(f'[[at]]\ntime = "{at:.3f}s"\n{what}\n' for at, what in events) + "[expect]\nsurvivor_groups = 1\n"


def main():
    first, last = map(int, sys.argv[1].split(".."))
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "target/random")
    folder.mkdir(parents=True, exist_ok=True)
    program = os.environ.get("WINGBEAT", "target/release/wingbeat")
    nobody, sides, broken, living = 0, 0, 0, 0
    for number in range(first, last):
        path = folder / f"cut-{number}.toml"
        path.write_text(scenario(number))
        ran = subprocess.run([program, "sim", str(path), "--seed", str(number), "--json"], capture_output=True, text=True)
        if ran.returncode not in (0, 3):
            sys.exit(f"{path}: {ran.stderr.strip()}")
        result = json.loads(ran.stdout)
        invariants = sorted({violation["invariant"] for violation in result["violations"]})
        nobody += result["survivors"] == 0
        sides += result["survivor_groups"] > 1
        broken += bool(invariants)
        living += result["survivors"]
        if result["survivor_groups"] != 1 or invariants:
            print(f"{path}: {result['survivors']} live in {result['survivor_groups']} groups {' '.join(invariants)}", flush=True)
    print(f"{last - first} run: nobody lives in {nobody}, two sides in {sides}, an invariant is broken in {broken}; {living} nodes live in all")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Kills, stops and ends real node processes at random, starts them again by the same command, and looks whether all are one cluster in the end.

    perf/random_kills.py SEED [SECONDS]

Number of nodes, seed list, preset, `on_downed` and faults are drawn from SEED; when each fault takes effect depends on the machine. Faults last for SECONDS
(default: 30); then all have a minute to be up in each one's view. WINGBEAT names the program (default: target/release/wingbeat). Logs and settings are in
target/kills/SEED. Exit code 1: they are not one cluster.
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import urllib.request

SETTLE = 60


class Node:
    def __init__(self, index, base, seeds, folder):
        program = os.environ.get("WINGBEAT", "target/release/wingbeat")
        self.http = base + 20 + index
        self.command = [program, "node", "--config", str(folder / "settings.toml")]
        self.command += ["--listen", f"127.0.0.1:{base + index}", "--admin", f"127.0.0.1:{self.http}"]
        self.command += [arg for seed in seeds for arg in ("--seed", f"127.0.0.1:{base + seed}")]
        self.log = open(folder / f"{index}.log", "a")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def supervise(self):
        if self.process.poll() is not None:
            self.start()

    def members(self):
        """Address and status of each member it knows, or why it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/api/v1/members", timeout=1) as answer:
                return sorted((m["addr"], m["status"]) for m in json.load(answer)["members"])
        except OSError as error:
            return str(error)


def fault(r, nodes):
    kind, node = r.choice(["kill"] * 4 + ["two", "end", "stop", "all" if r.random() < 0.2 else "kill"]), r.choice(nodes)
    if kind == "stop":
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(r.choice([0.5, 2, 6]))
        node.process.send_signal(signal.SIGCONT)
    elif kind == "end":
        node.process.terminate()
        time.sleep(r.choice([0, 0.5, 2]))
    else:
        for victim in {"kill": [node], "two": r.sample(nodes, 2), "all": nodes}[kind]:
            victim.kill()
        time.sleep(r.choice([0, 0, 0.5, 3, 8]))


def main():
    number, seconds = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 30
    r = random.Random(number)
    folder = pathlib.Path("target/kills") / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    count, seeds = r.choice([3, 5, 5, 7]), r.choice([[0], [0], [0, 1], [0, 1, 2]])
    rejoin, preset = r.choice(["rejoin", "stop"]), r.choice(["local_test", "local_test", "lan"])
    (folder / "settings.toml").write_text(f'[cluster]\nname = "kills-{number}"\npreset = "{preset}"\n[membership]\non_downed = "{rejoin}"\n')
    nodes = [Node(i, 7000 + number % 20 * 40, seeds, folder) for i in range(count)]
    try:
        time.sleep(4)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fault(r, nodes)
            [node.supervise() for node in nodes]
            time.sleep(r.choice([0.1, 1, 3, 6]))
        whole, end = False, time.monotonic() + SETTLE
        while not whole and time.monotonic() < end:
            [node.supervise() for node in nodes]
            seen = [node.members() for node in nodes]
            whole = all(len(view) == count and all(status == "up" for _, status in view) for view in seen if isinstance(view, list))
            whole &= all(isinstance(view, list) for view in seen)
            time.sleep(0.5)
        print(f"seed {number}: {count} nodes, seeds {seeds}, {preset}, {rejoin}: {'one cluster' if whole else 'NOT ONE CLUSTER'}")
        if not whole:
            print(*seen, sep="\n")
        sys.exit(not whole)
    finally:
        [node.kill() for node in nodes]


if __name__ == "__main__":
    main()

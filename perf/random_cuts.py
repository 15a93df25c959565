#!/usr/bin/env python3
"""Real nodes in network namespaces of their own, random cuts between them, and requests all the while: no entity may have two homes.

    sudo perf/random_cuts.py SEED [SECONDS]

Number of nodes, preset, strategy and faults are drawn from SEED; what a fault meets depends on the machine. A fault is a cut between two groups, both ways or
one way; of one pair; of its TCP alone; of the one connection that it has; or a pause; it lasts for some seconds, and others may come meanwhile. Faults last for
SECONDS (default: 60); then all is whole again, who has ended is started anew, and all have 90 s to be up in each one's view and to answer for each entity. Linux with
`ip` and `tc`, and root. WINGBEAT names the program (default: target/release/wingbeat). Logs and settings are in target/cuts/SEED. Exit code 1: something did not hold.
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request

SETTLE = 90
ENTITIES = 60
CLIENTS = 8
NET = "10.86.0"
TOKEN = "cuts-cuts-cuts-cuts"
TCP = 6


def sh(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def classic(tests):
    """A filter that drops what passes all tests, each an instruction that loads and the value that it must load."""
    count = len(tests)
    code = [line for i, (load, value) in enumerate(tests) for line in (load, f"21 0 {2 * (count - i) - 1} {value}")]
    return f"{len(code) + 2}," + ",".join(code + ["6 0 0 2", "6 0 0 4294967295"]) + ","


class Net:
    """Namespaces on one bridge, and what each does not let in."""

    def __init__(self, count):
        self.names, self.rules, self.lock = [f"wbcut{i}" for i in range(count)], {}, threading.Lock()
        self.end()
        sh("ip", "link", "add", "wbcut", "type", "bridge")
        sh("ip", "addr", "add", f"{NET}.254/24", "dev", "wbcut")
        sh("ip", "link", "set", "wbcut", "up")
        for i, name in enumerate(self.names):
            sh("ip", "netns", "add", name)
            sh("ip", "link", "add", f"wbc{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            sh("ip", "link", "set", f"wbc{i}", "master", "wbcut", "up")
            sh("ip", "-n", name, "addr", "add", f"{NET}.{i + 1}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh("ip", "-n", name, "link", "set", "lo", "up")
            sh("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "clsact")

    def end(self):
        for name in sh("ip", "netns", "list").split():
            if name.startswith("wbcut"):
                sh("ip", "netns", "del", name, check=False)
        # A namespace takes its end of a pair along only when nothing holds it any more.
        links = [line.split("@")[0].split()[0] for line in sh("ip", "-br", "link").splitlines()]
        for link in [link for link in links if link.startswith("wbc")]:
            sh("ip", "link", "del", link, check=False)

    def drop(self, source, target, *tests):
        """From `source` to `target` nothing comes that passes the tests, until the rule, which is returned, is taken away."""
        with self.lock:
            number = 1 + max(self.rules, default=0)
            self.rules[number] = target
        address = "48 0 0 29", source + 1
        bytecode = classic([address, *tests])
        self.tc(target, "add", number, "protocol", "ip", "bpf", "da", "bytecode", bytecode)
        return number

    def allow(self, number):
        self.tc(self.rules[number], "del", number)
        with self.lock:
            del self.rules[number]

    def tc(self, target, what, number, *rest):
        sh("ip", "netns", "exec", self.names[target], "tc", "filter", what, "dev", "eth0", "ingress", "pref", str(number), *rest)

    def port_of(self, pair):
        """The port by which one of two nodes has dialled the other."""
        for line in sh("ip", "netns", "exec", self.names[pair[0]], "ss", "-Htn", "state", "established").splitlines():
            here, there = [end.rsplit(":", 1) for end in line.split()[2:4]]
            if there[0] == f"{NET}.{pair[1] + 1}" and "7100" in (here[1], there[1]):
                return int(there[1] if here[1] == "7100" else here[1])
        return None


class Node:
    def __init__(self, index, folder):
        self.index, self.http = index, f"http://{NET}.{index + 1}:8100/api/v1"
        program = os.environ.get("WINGBEAT", "target/release/wingbeat")
        self.command = ["ip", "netns", "exec", f"wbcut{index}", program, "node", "--config", str(folder / "settings.toml")]
        self.command += ["--listen", f"{NET}.{index + 1}:7100", "--admin", f"{NET}.{index + 1}:8100"]
        self.command += [arg for seed in (1, 2) for arg in ("--seed", f"{NET}.{seed}:7100")]
        self.log = open(folder / f"{index}.log", "a")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.log)

    def supervise(self):
        if self.process.poll() is not None:
            self.start()

    def members(self):
        """Address and status of each member it knows, or why it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.http}/members", timeout=2) as answer:
                return sorted((m["addr"], m["status"]) for m in json.load(answer)["members"])
        except OSError as error:
            return str(error)

    def add(self, entity):
        """When it was asked and had answered, by which life of which node, from which stay of the shard, and the sum; `None` if it did not."""
        began = time.monotonic()
        try:
            request = urllib.request.Request(f"{self.http}/entities/counter/{entity}/add", data=b'{"n": 1}', headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request, timeout=3) as answer:
                body = json.load(answer)
        except (OSError, ValueError):
            return None
        return began, time.monotonic(), body["served_by"], body["epoch"], body["result"]["total"]


class Load:
    def __init__(self, nodes, seed):
        self.nodes, self.over, self.answers, self.asked = nodes, threading.Event(), {e: [] for e in range(ENTITIES)}, 0
        self.threads = [threading.Thread(target=self.run, args=(random.Random(f"{seed}-{i}"),)) for i in range(CLIENTS)]
        [thread.start() for thread in self.threads]

    def run(self, r):
        while not self.over.is_set():
            entity = r.randrange(ENTITIES)
            self.asked += 1
            if answer := r.choice(self.nodes).add(entity):
                self.answers[entity].append(answer)
            else:
                time.sleep(0.05)

    def end(self):
        self.over.set()
        [thread.join() for thread in self.threads]

    def wrong(self):
        """Answers that only a second home can have given, or one that was over."""
        for entity, answers in self.answers.items():
            answers.sort(key=lambda a: a[1])
            for i, (_, done, home, epoch, total) in enumerate(answers):
                for began, _, later_home, later_epoch, later_total in answers[i + 1:]:
                    if began < done:
                        continue
                    same = later_epoch == epoch
                    if later_epoch < epoch or same and later_home != home or same and later_total <= total:
                        yield f"entity {entity}: {total} from {home}, {epoch}, at {done:.3f}; then {later_total} from {later_home}, {later_epoch}, asked at {began:.3f}"
                        break


def fault(r, net, nodes):
    """Begins a fault: its name, how long it is to last, and what ends it."""
    all_of_them, length = list(range(len(nodes))), r.choice([0.5, 2, 5, 10, 20])
    r.shuffle(all_of_them)
    kind = r.choice(["cut", "cut", "one way", "pair", "tcp", "connection", "pause"])
    if kind == "pause":
        victim = nodes[all_of_them[0]].process
        victim.send_signal(signal.SIGSTOP)
        return f"pause {all_of_them[0]}", length, lambda: victim.poll() is None and victim.send_signal(signal.SIGCONT)
    size = 1 if kind in ("pair", "tcp", "connection") else r.randrange(1, len(nodes))
    ours, others = all_of_them[:size], all_of_them[size:] if kind in ("cut", "one way") else all_of_them[size:size + 1]
    tests = []
    if kind == "tcp":
        tests = [("48 0 0 23", TCP)]
    if kind == "connection":
        port = net.port_of((ours[0], others[0]))
        if port is None:
            return f"no connection {ours} {others}", 0, lambda: None
        rules = [net.drop(a, b, ("40 0 0 " + at, port)) for a, b in ((ours[0], others[0]), (others[0], ours[0])) for at in ("34", "36")]
        return f"connection {ours} {others}", 60, lambda: [net.allow(rule) for rule in rules]
    ways = [(a, b) for a in ours for b in others]
    if kind != "one way":
        ways += [(b, a) for a, b in ways]
    rules = [net.drop(a, b, *tests) for a, b in ways]
    return f"{kind} {ours} {others}", length, lambda: [net.allow(rule) for rule in rules]


def main():
    seed, seconds = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 60
    r = random.Random(seed)
    folder = pathlib.Path("target/cuts") / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    count, preset = r.choice([3, 4, 5, 5, 6]), r.choice(["local_test", "local_test", "lan"])
    strategy, downed = r.choice(["keep-majority", "keep-majority", "keep-oldest", "static-quorum"]), r.choice(["rejoin", "stop"])
    quorum = f"quorum_size = {count // 2 + 1}\n" if strategy == "static-quorum" else ""
    settings = f'[cluster]\nname = "cuts-{seed}"\npreset = "{preset}"\n[node]\ninsecure = true\nidle = "low_cpu"\n[admin]\ntoken = "{TOKEN}"\n[membership]\non_downed = "{downed}"\n'
    (folder / "settings.toml").write_text(settings + f'[downing]\nstrategy = "{strategy}"\n{quorum}')
    net, nodes, open_faults, told = Net(count), [], [], []
    print(f"seed {seed}: {count} nodes, {preset}, {strategy}, {downed}", flush=True)
    began = time.monotonic()
    tell = lambda what: told.append(f"{time.monotonic():.3f} {what}")
    try:
        nodes += [Node(i, folder) for i in range(count)]
        time.sleep(6)
        load = Load(nodes, seed)
        while time.monotonic() < began + 6 + seconds:
            if len(open_faults) < 3:
                name, length, heal = fault(r, net, nodes)
                tell(name)
                open_faults.append((time.monotonic() + length, name, heal))
            until = time.monotonic() + r.choice([0.5, 2, 5, 12])
            while time.monotonic() < until:
                for one in [one for one in open_faults if one[0] <= time.monotonic()]:
                    one[2]()
                    open_faults.remove(one)
                    tell("end of " + one[1])
                [node.supervise() for node in nodes]
                time.sleep(0.1)
        [heal() for _, _, heal in open_faults]
        tell("all is whole")
        whole = time.monotonic()
        good = lambda: [(f"{NET}.{i + 1}:7100", "up") for i in range(count)]
        while (views := [node.members() for node in nodes]) != [good()] * count and time.monotonic() < whole + SETTLE:
            [node.supervise() for node in nodes]
            time.sleep(0.2)
        took, one = time.monotonic() - whole, views == [good()] * count
        load.end()
        silent = [e for e in range(ENTITIES) if not any(node.add(e) for node in nodes for _ in range(5))]
        wrong = list(load.wrong())
    finally:
        (folder / "faults").write_text("\n".join(told))
        [node.process.kill() for node in nodes]
        [node.process.wait() for node in nodes]
        net.end()
    answered = sum(map(len, load.answers.values()))
    print(f"{'one cluster' if one else 'NOT ONE CLUSTER'} after {took:.1f} s; {answered} of {load.asked} answered; {len(silent)} entities silent; {len(wrong)} wrong answers")
    [print(line) for line in wrong[:10] + ([] if one else list(map(str, views)))]
    sys.exit(not one or bool(silent) or bool(wrong))


if __name__ == "__main__":
    main()

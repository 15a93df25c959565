#!/usr/bin/env bash
# What a cluster costs that does nothing: CPU and bytes per node and second of real processes, and the simulator's bytes for as many nodes.
#
#   perf/idle.sh [NODES] [SECONDS]      default: 10 nodes, 60 seconds, with the settings that nobody changed
#
# Bytes are those of datagrams sent and of links read, without the headers of the system; CPU is user and system time of the whole process, in
# per cent of one core. Ends with 3 if the simulator's bytes differ by more than a fifth.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${WINGBEAT:-target/release/wingbeat}
nodes=${1:-10}
seconds=${2:-60}
for tool in jq curl awk; do
    command -v "$tool" >/dev/null || { echo "idle.sh needs $tool" >&2; exit 1; }
done
work=$(mktemp -d)
pids=()
stop() {
    # Only what was started here.
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap stop EXIT

seed=()
for ((i = 0; i < nodes; i++)); do
    "$bin" node --listen 127.0.0.1:0 --admin 127.0.0.1:0 --json "${seed[@]}" >"$work/$i.json" 2>"$work/$i.log" &
    pids+=($!)
    disown $!
    until [ -s "$work/$i.json" ]; do
        kill -0 "${pids[$i]}" 2>/dev/null || { cat "$work/$i.log" >&2; exit 1; }
        sleep 0.05
    done
    [ "$i" -gt 0 ] || seed=(--seed "$(jq -r .addr "$work/0.json")")
done
admin() { jq -r .admin "$work/$1.json"; }
for ((i = 0; i < nodes; i++)); do
    until [ "$(curl -sf "http://$(admin "$i")/api/v1/status" | jq -r '"\(.size) \(.converged)"')" = "$nodes true" ]; do
        sleep 0.1
    done
done

# Ticks of the process and bytes of the node, summed over all.
ticks() { cat $(printf '/proc/%s/stat ' "${pids[@]}") | sed 's/.*) //' | awk '{ sum += $12 + $13 } END { print sum }'; }
bytes() {
    for ((i = 0; i < nodes; i++)); do curl -sf "http://$(admin "$i")/metrics"; done |
        awk '/^wingbeat_(datagram_bytes_out|net_link_bytes_in)_total / { sum += $2 } END { printf "%d\n", sum }'
}
# Past the end of what forming leaves behind.
sleep 10
ticks_before=$(ticks) bytes_before=$(bytes) began=$(date +%s.%N)
sleep "$seconds"
ticks_after=$(ticks) bytes_after=$(bytes) ended=$(date +%s.%N)

printf 'nodes = %d\nstart_spread = "1s"\nduration = "120s"\n' "$nodes" >"$work/idle.toml"
simulated=$("$bin" sim "$work/idle.toml" --json | jq -r '.bytes_per_node_per_s.mean')
awk -v n="$nodes" -v t="$(echo "$ended $began" | awk '{ print $1 - $2 }')" -v hz="$(getconf CLK_TCK)" \
    -v ticks="$((ticks_after - ticks_before))" -v bytes="$((bytes_after - bytes_before))" -v sim="$simulated" 'BEGIN {
        real = bytes / n / t
        printf "{\"nodes\": %d, \"seconds\": %.1f, \"cpu_percent_per_node\": %.2f, \"bytes_per_node_per_s\": %.0f, ", n, t, 100 * ticks / hz / n / t, real
        printf "\"simulator_bytes_per_node_per_s\": %.0f, \"ratio\": %.2f}\n", sim, real / sim
        exit (real / sim < 0.8 || real / sim > 1.2) ? 3 : 0
    }'

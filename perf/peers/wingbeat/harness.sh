#!/usr/bin/env bash
# harness.sh GROUP SECS: this library by its own `wingbeat bench`, in the lines of the other harnesses; WINGBEAT is the program.
#
# Not tuned: the settings are those that nobody changed. On one core the idle preset `low_cpu`, which is meant for that, has a row of its own beside
# the default, `balanced`.
# Entities are sharded, by key, on every path; the others' local actors are reached by a reference to each. Batches are rows of their own, as no
# other peer has them; and so is what an entity among the others on their worker tells and asks, as Pekko's driver is an actor among the actors. The raw limits that `bench` measures in the same run are printed as the peer "raw TCP".
set -euo pipefail
group=$1 secs=$2
: "${WINGBEAT:?is the program to measure}"

# bench MEASUREMENT PEER NAME FLAGS...
bench() {
    local measurement=$1 peer=$2
    shift 2
    # Entities that are started or weighed are a number, not a time.
    local timed=(--secs "$secs")
    [[ $measurement != memory && $measurement != start ]] || timed=()
    echo '{"begin":true}'
    "$WINGBEAT" bench "$@" --json --runs 1 "${timed[@]}" | jq -c --arg measurement "$measurement" --arg peer "$peer" '
        (.environment.version) as $version
        | (if .config.idle == "balanced" then $peer else "\($peer), \(.config.idle)" end) as $row
        | {peer: $row, version: $version, variant: .config.idle, measurement: $measurement} as $head
        | if $measurement == "memory" then
            $head + {unit: "bytes", value: .details.bytes_in_all, p50: null, p99: null, p999: null, n: .config.entities}
          else
            $head + {unit: (if $measurement | test("ask") then "asks/s" elif $measurement == "start" then "actors/s" else "messages/s" end),
                     value: .throughput_per_s, p50: .latency_ns.p50, p99: .latency_ns.p99, p999: .latency_ns.p999,
                     n: (if $measurement == "start" then .config.entities else (.throughput_per_s * .config.secs | round) end)}
          end,
          # Two that poll on one core would measure the scheduler.
          if $measurement == "remote-ask" and $peer == "wingbeat" and .environment.cores > 1 then
            {peer: "raw TCP", version: "", variant: "", measurement: "remote-ask", unit: "asks/s", value: null,
             p50: .limit.latency_ns.p50, p99: .limit.latency_ns.p99, p999: null, n: null}
          elif $measurement == "remote-tell" and $peer == "wingbeat" then
            {peer: "raw TCP", version: "", variant: "", measurement: "remote-tell", unit: "messages/s", value: .limit.throughput_per_s,
             p50: null, p99: null, p999: null, n: null}
          else empty end'
}

presets=(balanced)
[ "$(nproc)" -gt 1 ] || presets+=(low_cpu)
case $group in
local)
    bench local-tell wingbeat local-tell --single
    bench local-tell "wingbeat, batches" local-tell
    bench local-tell "wingbeat, inside" local-tell --inside --single
    bench local-ask "wingbeat, inside" local-ask --inside
    for preset in "${presets[@]}"; do
        bench local-ask wingbeat local-ask --idle "$preset"
    done
    ;;
remote)
    bench remote-tell wingbeat remote-tell --single
    bench remote-tell "wingbeat, batches" remote-tell
    for preset in "${presets[@]}"; do
        bench remote-ask wingbeat remote-ask --idle "$preset"
        bench remote-ask-128 wingbeat remote-ask --window 128 --idle "$preset"
    done
    ;;
population)
    bench memory wingbeat memory --entities 250000
    bench start wingbeat start --entities 250000 --single
    bench start "wingbeat, batches" start --entities 250000
    ;;
*) echo "$group is no group" >&2; exit 1 ;;
esac

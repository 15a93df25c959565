#!/usr/bin/env bash
# Builds the harnesses of the peers from package registries, runs them and this library in turns, and writes one table.
#
#   perf/peers/run.sh                          everything; about 75 minutes after the builds, more where others disturb
#   PEERS="wingbeat kameo" ROUNDS=1 perf/peers/run.sh
#
# PEERS          names from the list below              MODES     one, two, awake (see measure.sh)
# GROUPS_        local, remote, population              ROUNDS    5; medians are over them
# SECS           1: time of one measurement             OUT       perf/results: where peers.md and peers.csv go
# RUN_PREFIX     put in front of each run of a harness, for instance to hold other work still meanwhile
# WINGBEAT       this library's program, if it is built already
# LINES          a file that keeps the raw lines; with APPEND=1 those that it has count too, so that a run can be done in pieces;
#                rounds go on counting, as only what was measured close together is compared
# RETRIES        2: a run with a void measurement, or that failed, is done again, at most so often; what was void stays in the lines and is not counted
# BUILD_ONLY=1   builds and runs nothing; NO_BUILD=1 runs what was built before; REPORT_ONLY=1 makes the table of LINES and runs nothing
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
all_peers="wingbeat crossbeam actix coerce kameo ractor tellus pekko pekko-aeron protoactor"
peers=${PEERS:-$all_peers}
modes=${MODES:-two one awake}
groups=${GROUPS_:-local remote population}
rounds=${ROUNDS:-5}
secs=${SECS:-1}
retries=${RETRIES:-2}
out=${OUT:-$root/perf/results}
target=$root/target/peers
lines=${LINES:-$target/lines.jsonl}
export WINGBEAT=${WINGBEAT:-$root/target/release/wingbeat}
read -ra prefix <<<"${RUN_PREFIX:-}"
mkdir -p "$target/logs" "$out"

for tool in jq awk cargo taskset chrt setsid; do
    command -v "$tool" >/dev/null || { echo "run.sh needs $tool" >&2; exit 1; }
done
for peer in $peers; do
    [[ " $all_peers " == *" $peer "* ]] || { echo "run.sh: $peer is none of: $all_peers" >&2; exit 1; }
done

build() {
    [ -z "${NO_BUILD:-}" ] || return 0
    case $1 in
    wingbeat)
        [ "$WINGBEAT" != "$root/target/release/wingbeat" ] || cargo build --manifest-path "$root/Cargo.toml" --release --features cli --target-dir "$root/target"
        ;;
    pekko | pekko-aeron) mvn -q -B -f "$here/pekko/pom.xml" -DbuildDirectory="$target/pekko" package ;;
    protoactor) (cd "$here/protoactor" && go build -o "$target/protoactor" .) ;;
    *) cargo build --manifest-path "$here/$1/Cargo.toml" --release --locked --target-dir "$target" ;;
    esac
}

# The words of PEER's command, one a line; group and seconds follow them.
command_of() {
    case $1 in
    wingbeat) echo "$here/wingbeat/harness.sh" ;;
    pekko) printf '%s\n' "$here/pekko/harness.sh" "$target/pekko" tcp ;;
    pekko-aeron) printf '%s\n' "$here/pekko/harness.sh" "$target/pekko" aeron ;;
    protoactor) echo "$target/protoactor" ;;
    *) echo "$target/release/peer-$1" ;;
    esac
}

if [ -z "${REPORT_ONLY:-}" ]; then
    [ -n "${APPEND:-}" ] || : >"$lines"
    : >>"$lines"
    before=$(jq -s 'map(.round // 0) | max // 0' "$lines")
    built=()
    for peer in $peers; do
        echo "building $peer" >&2
        if build "$peer" >"$target/logs/$peer" 2>&1; then
            built+=("$peer")
        else
            why=$(grep -m 1 -i error "$target/logs/$peer" | cut -c 1-300 || true)
            echo "$peer cannot be built: $why (all of it: $target/logs/$peer)" >&2
            jq -cn --arg peer "$peer" --arg why "cannot be built: $why" '{peer: $peer, group: "all", error: $why}' >>"$lines"
        fi
    done
    [ -z "${BUILD_ONLY:-}" ] || exit 0
    for ((round = 1; round <= rounds; round++)); do
        for mode in $modes; do
            for group in $groups; do
                # What a thing weighs and how fast it starts is no question of how cores wake.
                [ "$group" != population ] || [ "$mode" = two ] || continue
                for peer in "${built[@]}"; do
                    echo "round $round of $rounds, $mode, $group: $peer" >&2
                    mapfile -t words < <(command_of "$peer")
                    for ((try = 0; try <= retries; try++)); do
                        "${prefix[@]}" "$here/measure.sh" "$mode" "$peer" "$group" "${words[@]}" "$group" "$secs" >"$target/run.jsonl" || true
                        jq -c --arg folder "$peer" --argjson round $((before + round)) '. + {folder: $folder, round: $round}' "$target/run.jsonl" >>"$lines"
                        # What a peer lacks takes no time, so that its load means nothing.
                        jq -es 'any(.[]; .error or (.void and (.lacks | not)))' "$target/run.jsonl" >/dev/null || break
                    done
                done
            done
        done
    done
fi

environment=$(jq -cn --arg cpu "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" --arg cores "$(nproc)" --arg kernel "$(uname -sr)" \
    --arg date "$(date -u +%F)" --arg secs "$secs" --arg rustc "$(rustc --version | cut -d ' ' -f 2)" \
    --arg java "$(java -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' || true)" --arg go "$(go env GOVERSION 2>/dev/null || true)" \
    '{cpu: $cpu, cores: $cores, kernel: $kernel, date: $date, secs: $secs, rustc: $rustc, java: $java, go: $go}')
jq -rs --arg what csv -f "$here/report.jq" --argjson environment "$environment" "$lines" >"$out/peers.csv"
jq -rs --arg what page -f "$here/report.jq" --argjson environment "$environment" "$lines" >"$out/peers.md"
echo "$out/peers.md" >&2

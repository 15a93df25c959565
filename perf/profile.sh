#!/usr/bin/env bash
# Where the time of a bench goes: samples of all its threads and processes, as a flame graph and a list of the hottest functions.
#
#   perf/profile.sh NAME [FLAG..]       e.g. perf/profile.sh remote-ask --window 128; default flags: --runs 1, and --secs 5 for what runs for a time
#
# Leaves target/profiles/NAME.svg (the flame graph), NAME.txt (functions by their own time) and NAME.data (for `perf report -i`). Samples by the
# system's clock, as virtual machines have no counters; frame pointers give the stacks, so the build is one of its own, in target/perf-fp. The raw limit
# of the bench is in the picture too, under its own functions (`limits::`).
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: perf/profile.sh NAME [FLAG..], with NAME as in wingbeat bench --help}
shift
flags=("$@")
if [ ${#flags[@]} -eq 0 ]; then
    flags=(--runs 1)
    case $name in timer | start | memory | growth | network-turn) ;; *) flags+=(--secs 5) ;; esac
fi
command -v perf >/dev/null || { echo "profile.sh needs perf (Debian: linux-perf, Ubuntu: linux-tools-generic)" >&2; exit 1; }
tools=target/tools
if [ ! -x $tools/bin/inferno-flamegraph ]; then
    cargo install --quiet --locked --root $tools --version 0.12.3 inferno
fi
RUSTFLAGS="-C force-frame-pointers=yes" cargo build --profile perf --features cli --target-dir target/perf-fp
out=target/profiles
mkdir -p $out
data=$out/$name.data
if ! perf record --quiet -e cpu-clock -F 997 --call-graph fp -o "$data" -- target/perf-fp/perf/wingbeat bench "$name" "${flags[@]}"; then
    echo "perf record failed; may this user sample? (sysctl kernel.perf_event_paranoid is $(cat /proc/sys/kernel/perf_event_paranoid), 1 or less is needed)" >&2
    exit 1
fi
if ! perf report -i "$data" --no-children --call-graph none --percent-limit 0.3 --stdio 2>/dev/null | sed '/^#/d; /^$/d' >"$out/$name.txt" || [ ! -s "$out/$name.txt" ]; then
    echo "perf report lists nothing of $data: the bench was too short, or this machine gives no samples of cpu-clock" >&2
    exit 1
fi
perf script -i "$data" 2>/dev/null | $tools/bin/inferno-collapse-perf 2>/dev/null |
    $tools/bin/inferno-flamegraph --title "wingbeat bench $name ${flags[*]}" >"$out/$name.svg"
head -20 "$out/$name.txt"
echo "$out/$name.svg"

#!/usr/bin/env bash
# Runs the scenarios of the numbers table over many seeds and writes perf/results/membership.md.
#
#   perf/campaign.sh A..B [FILE ...]     seeds A to B (excluded); without files every tests/scenarios/table-*.toml
#
# Each run's JSON is kept in target/campaign/NAME.jsonl; the table is made of all that stand there, so that long scenarios can be run on
# their own, with fewer seeds. `perf/campaign.sh table` only writes the table. LIMIT is the longest time for one file (default: none).
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${WINGBEAT:-target/release/wingbeat}
kept=target/campaign
out=perf/results/membership.md
mkdir -p "$kept" "$(dirname "$out")"
command -v jq >/dev/null || { echo "campaign.sh needs jq" >&2; exit 1; }

if [ "${1:-}" != table ]; then
    seeds=${1:?"usage: perf/campaign.sh A..B [FILE ...]"}
    shift
    [ $# -gt 0 ] || set -- tests/scenarios/table-*.toml
    for file; do
        name=$(basename "$file" .toml)
        echo "$name, seeds $seeds" >&2
        code=0
        timeout "${LIMIT:-0}" "$bin" sim "$file" --seeds "$seeds" --json >"$kept/$name.part" || code=$?
        # 0: all hold, 3: some do not. When the time is up (124), the seeds that are done still count.
        case $code in
            0 | 3 | 124) grep -v '"summary":true' "$kept/$name.part" >"$kept/$name.jsonl" || true ;;
            *) exit "$code" ;;
        esac
        rm -f "$kept/$name.part"
    done
fi

{
    echo '# Membership: the numbers table, measured'
    echo
    echo 'Written by `perf/campaign.sh A..B` from the scenario files named here. "Must" are the expectations of the file, "measured" the figures'
    echo 'that they judge as p50 / p99 / max over the seeds; T = H = 1 s. A row holds if every seed does. No row: not run yet.'
    echo
    echo '| scenario | nodes | seeds | holds in | must | measured |'
    echo '| --- | --- | --- | --- | --- | --- |'
    for file in tests/scenarios/table-*.toml; do
        name=$(basename "$file" .toml)
        [ -s "$kept/$name.jsonl" ] || continue
        must=$(sed -n '/^\[expect\]/,$p' "$file" | grep '=' | sed 's/"//g; s/ = / /' | paste -sd';' | sed 's/;/; /g')
        jq -rs --arg name "${name#table-}" --arg must "$must" '
            {all_up_by: "all_up_at_s", converged_by: "converged_at_s", all_reachable_by: "all_reachable_at_s", max_detect: "detect_s.max", max_known: "known_s.max",
             max_removal: "removal_s.max", max_view_changes: "view_changes_max", max_bytes_per_node_per_s: "bytes_per_node_per_s.mean",
             max_peak_bytes_per_node_per_s: "peak_bytes_per_node_per_s", max_sizes_seen: "sizes_seen", max_flips: "flips_max"} as $figure
            | def round3: if . == null then "never" else (. * 1000 | round) / 1000 end;
              def at($q): sort | .[([($q * length | ceil) - 1, 0] | max)];
              . as $runs
            | ($must | split("; ") | map(split(" ")[0])) as $keys
            | [$keys[] | . as $k | ($figure[$k] // $k | split(".")) as $path
                | [$runs[] | getpath($path)] as $all | ($all | map(select(. != null))) as $xs
                | "\($k | sub("^max_"; "")) " + (if $xs | length == 0 then "never" else "\($xs | at(0.5) | round3) / \($xs | at(0.99) | round3) / \($xs | max | round3)" end)
                  + (if ($all | length) > ($xs | length) then " (never in \(($all | length) - ($xs | length)))" else "" end)]
              as $shown
            | "| \($name) | \($runs[0].nodes) | \($runs | length) | \([$runs[] | select((.failed | length) == 0 and (.violations | length) == 0)] | length) | \($must) | \($shown | join("; ")) |"
        ' "$kept/$name.jsonl"
    done
} >"$out"
echo "written: $out" >&2

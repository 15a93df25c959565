#!/usr/bin/env bash
# Runs the scenarios of the numbers table over many seeds and writes perf/results/membership.md.
#
#   perf/campaign.sh A..B [FILE ...]     seeds A to B (excluded); without files every tests/scenarios/table-*.toml
#   perf/campaign.sh table               only writes the table
#
# A campaign is longer than a day, so it goes on where it was: what a run came to is a line in perf/results/membership/NAME.jsonl, and seeds that
# stand there are not run again. That is right for as long as the protocol does the same, and the file expects the same: the first of them is run
# again, and if that gives another line, all of that file go. LIMIT is the longest time for seeds without a gap (default: none); what is done by then
# counts, and so does what is done when the campaign is killed.
# WINGBEAT names the program (default: target/release/wingbeat); that of perf/pgo.sh takes a fifth to a third less time.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${WINGBEAT:-target/release/wingbeat}
kept=perf/results/membership
out=$kept.md
mkdir -p "$kept"
command -v jq >/dev/null || { echo "campaign.sh needs jq" >&2; exit 1; }

for before in "$kept"/*.before; do
    [ ! -e "$before" ] || mv "$before" "${before%.before}"
done

must_of() {
    sed -n '/^\[expect\]/,$p' "$1" | grep '=' | sed 's/"//g; s/ = / /' | paste -sd';' | sed 's/;/; /g'
}

# Of each run what its file expects, by the names of the expectations.
what_counts() {
    jq -c --unbuffered --arg must "$(must_of "$1")" '
        {all_up_by: "all_up_at_s", converged_by: "converged_at_s", all_reachable_by: "all_reachable_at_s", max_detect: "detect_s.max", max_known: "known_s.max",
         max_removal: "removal_s.max", max_view_changes: "view_changes_max", max_bytes_per_node_per_s: "bytes_per_node_per_s.mean",
         max_peak_bytes_per_node_per_s: "peak_bytes_per_node_per_s", max_sizes_seen: "sizes_seen", max_flips: "flips_max"} as $figure
        | select(.summary | not) | . as $run
        | {seed, digest, nodes, holds: (.failed + .violations == []),
           must: $must, measured: [$must | split("; ")[] | split(" ")[0] | {key: ., value: (. as $k | $run | getpath(($figure[$k] // $k) | split(".")))}] | from_entries}'
}

# Seeds A to B of a file, appended to what is kept of it.
run() {
    local file=$1 seeds=$2 lines=$3 code
    set +e
    timeout "${LIMIT:-0}" "$bin" sim "$file" --seeds "$seeds" --json | what_counts "$file" >>"$lines"
    code=${PIPESTATUS[0]}
    set -e
    # 0: all hold, 3: some do not, 124: the time is up.
    case $code in 0 | 3 | 124) ;; *) exit "$code" ;; esac
}

if [ "${1:-}" != table ]; then
    seeds=${1:?"usage: perf/campaign.sh A..B [FILE ...]"}
    shift
    [ $# -gt 0 ] || set -- tests/scenarios/table-*.toml
    for file; do
        name=$(basename "$file" .toml)
        lines=$kept/$name.jsonl
        touch "$lines"
        if [ -s "$lines" ]; then
            first=$(head -n 1 "$lines" | jq .seed)
            mv "$lines" "$lines.before"
            : >"$lines"
            run "$file" "$first..$((first + 1))" "$lines"
            # None if the time was up.
            if [ ! -s "$lines" ] || cmp -s <(head -n 1 "$lines.before") "$lines"; then mv "$lines.before" "$lines"; else rm "$lines.before"; fi
        fi
        for ((seed = ${seeds%..*}, last = ${seeds#*..}; seed < last; )); do
            end=$seed
            while ((end < last)) && ! grep -q "^{\"seed\":$end," "$lines"; do end=$((end + 1)); done
            if ((end > seed)); then
                echo "$name, seeds $seed..$end" >&2
                run "$file" "$seed..$end" "$lines"
            fi
            seed=$((end + 1))
        done
        sort -t: -k2n "$lines" >"$lines.sorted"
        mv "$lines.sorted" "$lines"
        [ -s "$lines" ] || rm "$lines"
    done
fi

{
    echo '# Membership: the numbers table, measured'
    echo
    echo 'Written by `perf/campaign.sh A..B` from the scenario files named here and the runs that it keeps. "Must" are the expectations of the file,'
    echo '"measured" the figures that they judge as p50 / p99 / max over the seeds; T = H = 1 s. A row holds if every seed does. No row: not run yet.'
    echo
    echo '| scenario | nodes | seeds | holds in | must | measured |'
    echo '| --- | --- | --- | --- | --- | --- |'
    for file in tests/scenarios/table-*.toml; do
        name=$(basename "$file" .toml)
        [ -s "$kept/$name.jsonl" ] || continue
        jq -rs --arg name "${name#table-}" --arg must "$(must_of "$file")" '
            def round3: if . == null then "never" else (. * 1000 | round) / 1000 end;
            def at($q): sort | .[([($q * length | ceil) - 1, 0] | max)];
            . as $runs
            | [$must | split("; ")[] | split(" ")[0] as $k
                | [$runs[].measured[$k]] as $all | ($all | map(select(. != null))) as $xs
                | "\($k | sub("^max_"; "")) " + (if $xs | length == 0 then "never" else "\($xs | at(0.5) | round3) / \($xs | at(0.99) | round3) / \($xs | max | round3)" end)
                  + (if ($all | length) > ($xs | length) then " (never in \(($all | length) - ($xs | length)))" else "" end)]
              as $shown
            | "| \($name) | \($runs[0].nodes) | \($runs | length) | \([$runs[] | select(.holds)] | length) | \($must) | \($shown | join("; ")) |"
        ' "$kept/$name.jsonl"
    done
} >"$out"
echo "written: $out" >&2

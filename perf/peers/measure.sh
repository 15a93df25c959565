#!/usr/bin/env bash
# measure.sh MODE PEER GROUP COMMAND...: runs one harness and passes its lines on, each with the mode and with the share of the machine that others
# used since it began. What others used is what /proc/stat counts as busy, less what the harness, its other process and the spinners used.
#
# MODE: one    everything on the first core
#       two    on the first two cores
#       awake  on the first two cores, each kept from halting by a spinner of idle priority
set -euo pipefail
mode=$1 peer=$2 group=$3
shift 3
limit=${LIMIT_SECONDS:-90}

case $mode in
one) cores=0 ;;
two | awake) cores=0-1 ;;
*) echo "measure.sh: $mode is no mode; use one, two or awake" >&2; exit 1 ;;
esac

spinners=()
errors=$(mktemp)
stop() {
    for pid in "${spinners[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    rm -f "$errors"
}
trap stop EXIT
if [ "$mode" = awake ]; then
    for core in 0 1; do
        taskset -c $core chrt -i 0 nice -n 19 bash -c 'while :; do :; done' &
        spinners+=($!)
        disown $!
    done
fi

# Busy and all ticks of the machine, and those of this script, its ended children, the harness's session and the spinners.
session=-1
ticks() {
    cat /proc/stat /proc/[0-9]*/stat 2>/dev/null | awk -v me=$$ -v session="$session" -v spinners=" ${spinners[*]} " '
        $1 == "cpu" { for (i = 2; i <= 9; i++) all += $i; busy = all - $5 - $6; next }
        match($0, /^[0-9]+ \(/) {
            pid = $1
            sub(/^.*\) /, "")
            if (pid == me || $4 == session) own += $12 + $13 + $14 + $15
            else if (index(spinners, " " pid " ")) own += $12 + $13
        }
        END { print busy, all, own }'
}

read -r busy all own < <(ticks)
busy_last=0 all_last=0 own_last=0
# The session's number is the process's, as `setsid` has no need to fork here.
exec 3< <(exec taskset -c $cores setsid timeout -k 5 "$limit" "$@" 2>"$errors")
session=$!
while IFS= read -r line <&3; do
    read -r busy_now all_now own_now < <(ticks)
    # A process that ends between two looks is in neither its own count nor its parent's: looked at again if it would make a difference.
    if [ $((100 * (busy_now - busy - own_now + own))) -gt $((15 * (all_now - all))) ]; then
        read -r busy_now all_now own_now < <(ticks)
    fi
    # A measurement begins: what was used before is not its concern.
    if [ "$line" = '{"begin":true}' ]; then
        busy=$busy_now all=$all_now own=$own_now
        continue
    fi
    # Printed together with the line before: measured in the same time.
    if [ $((all_now - all)) -lt 10 ]; then
        busy_now=$((busy + busy_last)) all_now=$((all + all_last)) own_now=$((own + own_last))
    fi
    busy_last=$((busy_now - busy)) all_last=$((all_now - all)) own_last=$((own_now - own))
    jq -c --arg mode "$mode" --argjson d "[$((busy_now - busy)), $((all_now - all)), $((own_now - own))]" \
        '. + {mode: $mode, foreign: ([0, ($d[0] - $d[2]) / ([$d[1], 1] | max)] | max | . * 1000 | round / 1000)} | . + {void: (.foreign > 0.15)}' <<<"$line"
    read -r busy all own < <(ticks)
done
status=0
wait "$session" || status=$?
if [ "$status" != 0 ]; then
    # The last line that says something, without the frames of a stack.
    why=$(grep -v -E '^\s*(at |\.\.\. |note: |stack backtrace|goroutine |$)' "$errors" | tail -n 1 | cut -c 1-300 || true)
    [ "$status" != 124 ] || why="not done within $limit s"
    jq -cn --arg peer "$peer" --arg group "$group" --arg mode "$mode" --arg why "${why:-it ended with $status}" \
        '{peer: $peer, group: $group, mode: $mode, error: $why}'
fi

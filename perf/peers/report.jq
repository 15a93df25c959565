# The page, or the CSV file, of all lines that the harnesses printed.

def median: sort | .[length / 2 | floor];
def columns: ["local-tell", "local-ask", "remote-ask", "remote-ask-128", "remote-tell", "memory", "start"];
def by_latency: . == "local-ask" or . == "remote-ask";
# The least is the best.
def ascends: by_latency or . == "memory";
def order: ["wingbeat", "wingbeat, batches", "wingbeat, inside", "wingbeat, low_cpu", "pekko", "pekko, direct", "pekko (Aeron)", "actix", "coerce", "kameo", "ractor", "tellus", "protoactor-go", "crossbeam-channel", "raw TCP"];
def place: . as $peer | order | index($peer) // 99;
def ours: startswith("wingbeat");
def floor_: . == "crossbeam-channel" or . == "raw TCP";

def fixed($digits): . as $x | (if $digits == 0 then 1 elif $digits == 1 then 10 else 100 end) as $by | ($x * $by | round / $by | tostring);
def short: if . >= 100 then fixed(0) elif . >= 10 then fixed(1) elif . >= 0.1 then fixed(2) else . * 10000 | round / 10000 | tostring end;
def us: if . == null then "-" else . / 1000 | short end;
def percent: . * 100 | round | tostring + " %";

# Figure of a line that columns are compared by.
def figure: if (.measurement | by_latency) then .p50 else .value end;

# Rounds of one peer, mode, measurement and variant: those in quiet, or all if there are none.
def summary:
    . as $all
    | (map(select(.void | not)) | if length > 0 then . else $all end) as $counted
    | ($counted | map(figure | select(. != null))) as $figures
    | ($figures | median) as $middle
    | $all[0] * {
        rounds: ($all | length), quiet: ($all | map(select(.void | not)) | length),
        value: ($counted | map(.value | select(. != null)) | if length > 0 then median else null end),
        p50: ($counted | map(.p50 | select(. != null)) | if length > 0 then median else null end),
        p99: ($counted | map(.p99 | select(. != null)) | if length > 0 then median else null end),
        p999: ($counted | map(.p999 | select(. != null)) | if length > 0 then median else null end),
        foreign: ($counted | map(.foreign) | median),
        spread: (if $middle > 0 then ($figures | map((. - $middle) | fabs) | max / $middle) else 0 end),
        figure: $middle
      };

def lines: map(select(.measurement != null and .lacks == null));
def summaries: lines | group_by([.mode, .peer, .measurement, .variant]) | map(summary);
# The better variant; one in quiet goes before one that was disturbed.
def best: (.[0].measurement | ascends) as $up | sort_by([(.quiet == 0), (if $up then .figure else -.figure end)]) | .[0];
def chosen: summaries | group_by([.mode, .peer, .measurement]) | map(best);

def text:
    (if .measurement == "local-ask" or .measurement == "remote-ask" then "\(.p50 | us) / \(.p99 | us)" + (if .measurement == "remote-ask" and .p999 then " / \(.p999 | us)" else "" end)
     elif .measurement == "remote-ask-128" then "\(.value / 1000 | short)" + (if .p50 then " (\(.p50 | us) / \(.p99 | us) / \(.p999 | us))" else "" end)
     elif .measurement == "memory" then .value | fixed(0)
     elif .measurement == "start" then .value / 1000 | short
     else .value / 1000000 | short end)
    + " ±\(.spread | percent)" + (if .variant as $variant | .peer | endswith($variant) then "" else " [\(.variant)]" end) + (if .quiet == 0 then " **void**" else "" end);

def head: "| peer | local tell, M/s | local ask, us | remote ask, us | remote ask, 128 in flight, k/s | remote tell, M/s | idle actor, bytes | start, k/s |\n| --- | --- | --- | --- | --- | --- | --- | --- |";

# Quiet lines of a cell, by their round.
def by_round($lines; $cell):
    $lines | map(select([.mode, .peer, .measurement, .variant] == ($cell | [.mode, .peer, .measurement, .variant]) and (.void | not)))
    | INDEX(.round);
# The median of the ratios of each round that has both: what a round measures is measured close together.
def ratio($ours; $best; value):
    [$ours | keys[] | select($best[.]) | ($ours[.] | value) / ($best[.] | value)] | if length > 0 then (median | short) + "x" else "-" end;

# Ours to the best peer, floors not counted: throughput and p50, as they come.
def ratios($cells; $lines; $mode; is_ours):
    [columns[] as $column
     | ($cells | map(select(.mode == $mode and .measurement == $column and .quiet > 0))) as $all
     | ($all | map(select(.peer | is_ours)) | if length > 0 then best else null end) as $ours
     | ($all | map(select((.peer | ours or floor_) | not)) | if length > 0 then best else null end) as $best
     | if ($ours and $best) then
         by_round($lines; $ours) as $a | by_round($lines; $best) as $b
         | ratio($a; $b; figure) + (if $column == "remote-ask" then " (p99 " + ratio($a; $b; .p99) + ")" else "" end) + ", \($best.peer)"
       else "-" end];

def section($cells; $lines; $mode; $title):
    ($lines | map(select(.mode == $mode)) | map(.peer) | unique | sort_by(place)) as $peers
    | if ($peers | length) == 0 then empty else
        "## \($title)\n", head,
        ($peers[] as $peer
         | "| \($peer) | " + ([columns[] as $column
             | ($cells | map(select(.mode == $mode and .peer == $peer and .measurement == $column)) | .[0]) as $cell
             | if $cell then ($cell | text) else "-" end] | join(" | ")) + " |"),
        "| **ours to the best peer** | " + (ratios($cells; $lines; $mode; ours) | join(" | ")) + " |",
        ($peers[] | select(. == "wingbeat, low_cpu")
         | "| **\(.) to the best peer** | " + (. as $row | ratios($cells; $lines; $mode; . == $row) | join(" | ")) + " |"), ""
      end;

def reasons:
    map(select(.lacks != null)) | group_by(.peer) | sort_by(.[0].peer | place)
    | map("* \(.[0].peer): " + (group_by(.lacks) | map("\(map(.measurement) | unique | join(", ")): \(.[0].lacks)") | join("; "))) | .[];
def failures:
    map(select(.error != null)) | group_by([.folder // .peer, .group, .error])
    | map("* \(.[0].folder // .[0].peer), \(.[0].group), \(map(.mode // "build") | group_by(.) | map("\(.[0]) \(length) times") | join(", ")): \(.[0].error)") | .[];
def versions: lines | map(select(.version != "")) | map("\(.peer | split(",")[0]) \(.version)") | unique | sort_by(split(" ")[0]) | join(", ");

def page:
    . as $lines | chosen as $cells | lines as $measured
    | "# Peers, measured in turns with this library\n",
      "`perf/peers/run.sh`, \($environment.date): \($environment.cpu), \($environment.cores) cores, \($environment.kernel); rustc \($environment.rustc), Java \($environment.java), \($environment.go). Messages of 64 bytes to 1,000 actors in turn, two processes on loopback where it says remote, \($environment.secs) s for each measurement.\n",
      "Each figure is the median of its rounds; ± is the largest deviation of a round from it. Ours to the best peer is the ratio of each round, then the median. Asks: p50 / p99 / p99.9, one in flight; with 128 in flight the throughput, and latencies in brackets. In square brackets the variant that did best (threads of the runtime, idle preset); all of them are in peers.csv. Rounds during which others used more than 15 % of the machine are not counted; where all were such the figure is void. What each harness does is in its header, how to read this in `perf/peers/README.md`.\n",
      "Versions: \($lines | versions).\n",
      "\($measured | map(.round) | unique | length) rounds, \($measured | length) measurements, \($measured | map(select(.void)) | length) of them void; foreign load in the others: median \($measured | map(select(.void | not) | .foreign) | if length > 0 then median | percent else "-" end).\n",
      (if ($measured | map(select(.void)) | length) * 2 > ($measured | length) then "**Others used the machine during most of this: what is void proves nothing, and shows the form of the page and orders of magnitude.**\n" else empty end),
      section($cells; $lines; "two"; "Two cores"),
      section($cells; $lines; "one"; "One core"),
      section($cells; $lines; "awake"; "Two cores kept awake by spinners of idle priority"),
      "## What is missing, and why\n", ($lines | reasons), ($lines | failures);

def csv:
    "round,mode,peer,version,variant,measurement,unit,value,p50_ns,p99_ns,p999_ns,n,foreign,void",
    (lines[] | [.round, .mode, .peer, .version, .variant, .measurement, .unit, .value, .p50, .p99, .p999, .n, .foreign, .void] | @csv);

# Bytes in use are the same whoever else uses the machine.
map(if .measurement == "memory" then .void = false else . end)
| if $what == "csv" then csv else page end

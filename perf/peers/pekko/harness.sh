#!/usr/bin/env bash
# harness.sh DIRECTORY tcp|aeron GROUP SECS: Pekko from the class files and libraries in DIRECTORY, once for each size of pool worth trying.
#
# The virtual machine: a heap that is there from the start and never grows, the parallel collector, which has the best throughput and no threads that
# run beside the program. Everything is warmed up before it is measured, as its code has to be compiled first.
set -euo pipefail
directory=$1 transport=$2 group=$3 secs=$4
peer=pekko
[ "$transport" = tcp ] || peer="pekko (Aeron)"
flags=(-XX:+UseParallelGC -Xms1g -Xmx1g -XX:+AlwaysPreTouch)
if [ "$transport" = aeron ]; then
    # Aeron maps its buffers and reads them past what the modules of the platform export.
    flags+=(--add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.base/jdk.internal.misc=ALL-UNNAMED)
    [ "$group" = remote ] || exit 0
fi
# POOLS may leave one out.
pools=(1)
[ "$(nproc)" -eq 1 ] || read -ra pools <<<"${POOLS:-1 2}"
for pool in "${pools[@]}"; do
    pin=()
    # One thread for each process: each on a core of its own.
    if [ "$pool" = 1 ] && [ "$group" = remote ] && [ "$(nproc)" -gt 1 ]; then
        export SERVER_CORE=1
        pin=(taskset -c 0)
    fi
    "${pin[@]}" java "${flags[@]}" -cp "$directory/classes:$directory/lib/*" Harness "$peer" "$transport" "$group" "$secs" "$pool"
done

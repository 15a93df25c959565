#!/usr/bin/env bash
# Instructions per operation beside what perf/gates.toml allows; WINGBEAT_GATES=write records them. Arguments are passed on to cargo.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get install -y valgrind || { $as_root apt-get update && $as_root apt-get install -y valgrind; } || {
        echo "valgrind is not installed, and apt-get cannot install it: without it nobody counts instructions" >&2
        exit 1
    }
fi
# With the features of the binary, whose build CI shares.
cargo run --profile gates --features cli --example gates "$@"

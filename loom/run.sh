#!/usr/bin/env bash
# The lock-free structures of the engine under loom, which runs each model in all interleavings.
set -euo pipefail
cd "$(dirname "$0")"
cargo test --target-dir ../target/loom "$@"

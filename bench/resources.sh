#!/usr/bin/env bash
# What every row of tests/instances costs: compiles each for sm_80, sm_90a and sm_120 and writes
# bench/results/resources.csv (registers, spills, shared memory, compile time and memory). Needs nvcc, no GPU.
#
#   bench/resources.sh [FOLDER]     FOLDER keeps what was compiled, so that a second run does only what changed
#
# JOBS compilers run at a time; each takes up to 2 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-build-resources}
mkdir -p "$folder"
python3 bench/resources.py rows | xargs -P "${JOBS:-2}" -L 1 python3 bench/resources.py compile "$folder"
python3 bench/resources.py table "$folder"

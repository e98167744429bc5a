#!/usr/bin/env bash
# Installs what is missing (Debian 12 or newer, as root or with sudo), builds everything and runs every test, the unit
# tests once more under the address and undefined-behaviour sanitizers. The last line counts. With arguments it runs
# `meson test` with them instead, such as --suite lint.
source "$(dirname "${BASH_SOURCE[0]}")/../examples/setup.sh"

need "${build_needs[@]}" command:git=git command:python3=python3 command:cmake=cmake \
  header:doctest/doctest.h=doctest-dev header:benchmark/benchmark.h=libbenchmark-dev

everything=(-Dtests=enabled -Dexamples=enabled -Dbench=enabled -Dcuda=auto)
# Checked builds: -Og with line tables compiles 2.4 times as fast as -O1 -g here; asserts are on, and the first undefined
# step ends the program.
checked=(-Dtests=enabled -Dexamples=disabled -Dbench=disabled -Dcuda=disabled
  -Doptimization=g -Ddebug=false -Db_ndebug=false
  -Db_sanitize=address,undefined -Db_lundef=false "-Dcpp_args=-g1 -fno-sanitize-recover=undefined")

# run FOLDER MESON-TEST-ARGUMENT...: the log names each test, failing ones with their output.
run() {
  rm -f "$1/meson-logs/testlog.json"
  meson test -C "$1" --no-rebuild --print-errorlogs "${@:2}" </dev/null || failed=yes
  logs+=("$1/meson-logs/testlog.json")
}

failed=no
logs=()
configure build "${everything[@]}"
build build all meson-test-prereq
if [ $# -gt 0 ]; then
  run build "$@"
else
  configure build-checked "${checked[@]}"
  build build-checked unit
  run build
  say "the unit tests under the sanitizers"
  run build-checked --suite unit --timeout-multiplier 5
fi
exec python3 tests/totals.py $failed "${logs[@]}"

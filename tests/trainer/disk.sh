#!/usr/bin/env bash
# On a disk that fills up the run stops with disk-low before it writes, and the last checkpoint still loads.
source "$(dirname "$0")/common.sh"
mkdir small
mount -t tmpfs -o size=16m tmpfs small 2>/dev/null || { echo "SKIP: mounting a tmpfs needs root"; exit 77; }
trap 'umount "$work/small"; rm -rf "$work"' EXIT
run=("$train" lm --preset tiny --steps 60 --sample-bytes 0 --out small/run)

expect 5 "error: disk-low: small/run: " "${run[@]}" --checkpoint-every 1 --keep-last 100 --min-free-gb 0.006
grep -qE '[0-9.]+ MB free, 1\.[0-9] MB to write, 6\.0 MB to stay free' output || { cat output; fail "no numbers"; }
[ "$(df --output=avail -B1000 small | tail -n 1)" -ge 6000 ] || fail "less is free than was to stay free"
count=$(ls small/run | grep -c '^checkpoint')
[ "$count" -ge 5 ] || fail "only $count checkpoints before the disk was low"
ls small/run | grep -q '\.part$' && fail "a temporary file is left" || true

# With fewer kept and a smaller reserve the same run ends.
expect 0 "resumed after step $count" "${run[@]}" --resume --checkpoint-every 5 --keep-last 1 --min-free-gb 0.001
[ "$(ls small/run | grep -c '^checkpoint')" -eq 1 ] || fail "more than one checkpoint is kept"
expect 5 "error: disk-low" "$train" lm --preset tiny --out small/other --min-free-gb 1

#!/usr/bin/env bash
# What looks at a run from beside it, from outside: the tables, the reports, and that nothing else is left behind.
source "$(dirname "$0")/common.sh"
seq 1 4000 >text

expect 0 "  backward, causal 64x64, 2/1 heads of 32 " "$train" profile lm --preset tiny --data text --repeat 3 --report profile.json
grep -q '"plan_bytes": [1-9]' profile.json || fail "no plan in the report"
grep -q '"op": "AdamW"' profile.json || fail "no ops in the report"
expect 2 "error: bad-option: " "$train" profile lm --preset tiny --data text --repeat 0
expect 2 "error: bad-option: A subcommand is required" "$train" profile

expect 0 "drift: close" "$train" twin lm --preset tiny --data text --steps 12 --report twin.json
grep -q '"first_difference": 1,' twin.json || fail "no first difference in the report"
[ "$(grep -c '"gradient"' twin.json)" -eq 12 ] || fail "not every step is in the report"
expect 0 "no bit differs" "$train" twin lm --preset tiny --data text --steps 3 --second "--threads 1 --ckpt 2"
expect 2 "error: bad-option: --second: the second run trains other tensors" "$train" twin lm --preset tiny --data text --second "--hidden 96"
[ ! -e lanewise-train-out ] || fail "a folder for a run was made"

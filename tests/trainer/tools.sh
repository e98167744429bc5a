#!/usr/bin/env bash
# What looks at a run from beside it, from outside: the tables, the reports, and that nothing else is left behind.
source "$(dirname "$0")/common.sh"
seq 1 4000 >text

expect 0 "  backward, causal 64x64, 2/1 heads of 32 " "$train" profile lm --preset tiny --data text --repeat 3 --report profile.json
grep -q '^a step without measuring its ops ' output || fail "no step is timed whole"
grep -q '"plan_bytes": [1-9]' profile.json || fail "no plan in the report"
grep -q '"op": "AdamW"' profile.json || fail "no ops in the report"
expect 0 "  backward, window 128 " "$train" profile dit --preset tiny --repeat 1
grep -q "  adaptive norm backward " output || fail "the layers of dit alone are not measured"
expect 2 "error: bad-option: " "$train" profile lm --preset tiny --data text --repeat 0
expect 2 "error: bad-option: A subcommand is required" "$train" profile

expect 0 "drift: close" "$train" twin lm --preset tiny --data text --steps 12 --report twin.json
grep -q '"first_difference": 1,' twin.json || fail "no first difference in the report"
[ "$(grep -c '"gradient"' twin.json)" -eq 12 ] || fail "not every step is in the report"
expect 0 "no bit differs" "$train" twin lm --preset tiny --data text --steps 3 --second "--threads 1 --ckpt 2"
expect 2 "error: bad-option: --second: the second run trains other tensors" "$train" twin lm --preset tiny --data text --second "--hidden 96"
expect 0 "drift: " "$train" twin dit --preset tiny --steps 6 --report twin.json
[ "$(grep -c '"gradient"' twin.json)" -eq 6 ] || fail "not every step of dit is in the report"
# A card of which 256 MiB are left alone; what it finds is run as it is printed.
expect 0 "TOTAL" "$train" fit lm --preset tiny --data text --vram-budget-mb 258.5 --report fit.json
grep -q '"fits": true,' fit.json || fail "no plan in the report"
expect 0 "step 3/3" eval "$(sed -n 's/^  lanewise-train/"$train"/p' output) --memory-mb 2.5 --steps 3 --sample-bytes 0 --out fitted"
[ "$("$train" fit lm --preset tiny --attn exact | grep -c ' fits$')" -eq 5 ] || fail "not every card is looked at"
expect 6 "--layers 1 --ckpt 1 (" "$train" fit lm --preset tiny --vram-budget-mb 257
grep -qE 'error: out-of-memory: est 1\.[0-9] MiB, free 257.0 MiB, reserve 256.0 MiB; these would fit: --hidden 16 ' output || fail "no numbers"
expect 2 "error: bad-option: --vram-budget-mb: nan is no number" "$train" fit lm --preset tiny --vram-budget-mb nan
expect 0 " fits" "$train" fit lm --preset tiny --vram-budget-mb 1e30
# dit: the longest crop that fits, also beyond the recordings; with fewer layers where that is asked for; what it finds
# runs as it is printed.
expect 0 "TOTAL" "$train" fit dit --preset tiny --vram-budget-mb 261 --longest 4096 --report fit.json
grep -q '"crop": [1-9][0-9][0-9],' fit.json || fail "no crop in the report"
expect 0 " --layers 1" "$train" fit dit --preset tiny --vram-budget-mb 259 --layers-min 1
expect 0 "step 2/2" eval "$(sed -n 's/^  lanewise-train/"$train"/p' output) --memory-mb 3 --steps 2 --sample-steps 0 --out fitted-dit"
expect 6 "these would fit: --layers 1 --ckpt 1 (" "$train" fit dit --preset tiny --vram-budget-mb 259
[ ! -e lanewise-train-out ] || fail "a folder for a run was made"

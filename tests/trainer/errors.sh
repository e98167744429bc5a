#!/usr/bin/env bash
# Every way to fail has a name, an exit code and its numbers; nothing is cut, nothing falls back in silence.
source "$(dirname "$0")/common.sh"
quick=("$train" lm --preset tiny --steps 3 --sample-bytes 0 --overwrite)

# --max-len filters by document and says what it kept.
mkdir text
for n in 900 1500 2300; do head -c "$n" /dev/zero | tr '\0' x >"text/$n"; done
expect 0 "data: 1 documents of 3 files, skipped_long=2 skipped_bad=0, max_len requested=1024 actual=900" "${quick[@]}" --data text --max-len 1024
expect 0 "skipped_long=0 skipped_bad=0, max_len requested=4096 actual=2300" "${quick[@]}" --data text --max-len 4096
expect 0 "max_len requested=none actual=2300" "${quick[@]}" --data text --max-len 0
expect 4 "error: no-samples: no document is left of 3 files: skipped_long 3, skipped_bad 0" "${quick[@]}" --data text --max-len 500
printf 'a\0b' >text/binary
expect 0 "skipped_long=0 skipped_bad=1" "${quick[@]}" --data text
expect 4 "error: no-samples: --context 5000 needs 5001 bytes of training text" "${quick[@]}" --data text --context 5000
expect 3 "error: no-data: --data: there is no nowhere" "${quick[@]}" --data nowhere
expect 3 "error: no-data: --data: /dev/zero is a device, which may never end" "${quick[@]}" --data /dev/zero

# Options: what is documented as unset is unset, and the log says who decided.
expect 0 "options source=user: --preset 'tiny' --seed 7 " "$train" lm --preset tiny --steps 0 --sample-bytes 0 --seed 7 --out log
grep -q '^options source=user: .* --sample-bytes 0$' output || fail "--sample-bytes 0 is not said to be the user's"
grep -q '^options source=auto: .*--steps 40 ' output || fail "--steps 0 is not unset"
expect 2 "error: bad-option: --steps" "${quick[@]}" --steps 3
expect 2 "error: bad-option: The following argument was not expected: --nonsense" "$train" lm --nonsense
expect 2 "error: bad-option: --kv-heads: 3 does not divide --heads 4" "$train" lm --heads 4 --kv-heads 3

expect 0 "step 3/3" "${quick[@]}" --memory-mb 1e300
expect 2 "error: bad-option: --threads: 4294967297 is more than 4096" "${quick[@]}" --threads 4294967297
expect 2 "error: bad-option: --layers: 100000000000 is more than 10000" "${quick[@]}" --layers 100000000000
expect 2 "error: bad-option: a step of --batch 2147483648 and --context 1048576 has more than 2^50 numbers" "${quick[@]}" --batch 2147483648 --context 1048576

if [ "$device" = cpu ]; then
  # A program without a GPU side, and a precision that only a GPU has.
  expect 14 "error: no-device: --device cuda: this lanewise-train was built without CUDA; use --device cpu" "${quick[@]}" --device cuda
  expect 2 "error: bad-option: --precision tf32 needs --device cuda" "${quick[@]}" --precision tf32
  expect 2 "error: bad-option: --device: gpu is neither cpu nor cuda" "${quick[@]}" --device gpu
else
  expect 2 "error: bad-option: --precision: f64 is none of f32, f32_split, tf32, bf16" "${quick[@]}" --precision f64
  expect 14 "error: no-device: --device cuda: no NVIDIA GPU can be used" env CUDA_VISIBLE_DEVICES= "${quick[@]}"
fi

# Memory: an estimate over the budget, and a refusal by the system, end cleanly with the numbers. On a GPU the plan has
# the library's 32 MiB as well.
mb=3
[ "$device" = cpu ] || mb=35
expect 6 "error: out-of-memory: est 3" "${quick[@]}" --memory-mb $mb
grep -q "est [0-9.]* MiB, free $mb.0 MiB, reserve 0.0 MiB; these would fit: --batch 2 " output || { cat output; fail "no numbers, or no way out"; }
expect 0 "memory: plan $((mb - 1))." "${quick[@]}" --memory-mb $mb --batch 2
# The host's address space, or more than any GPU has.
refused() { if [ "$device" = cpu ]; then ulimit -v 2000000; fi; exec "$@"; }
windows=6000
[ "$device" = cpu ] || windows=4000000
who=system
[ "$device" = cpu ] || who=GPU
expect 6 "error: out-of-memory: est " eval '(refused "${quick[@]}" --memory-mb 10000000 --batch $windows)'
grep -qE "est [0-9.]+ MiB, free 10000000.0 MiB, reserve 0.0 MiB: the $who refused a buffer of [0-9]+ bytes" output || { cat output; fail "no numbers"; }

expect 7 "error: attn-unsupported: dispatch: 48 is not among the values that this program was compiled for: 32 64 128" "${quick[@]}" --head-dim 48
library=BLAS
[ "$device" = cpu ] || library=cuBLASLt
expect 0 "attention: materialised softmax on $library" "${quick[@]}" --head-dim 48 --attn exact
expect 10 "error: out-exists: lanewise-train-out holds a run" "$train" lm --preset tiny --steps 3
expect 11 "error: loss-not-finite: step 2: " "${quick[@]}" --lr 1e30
expect 11 "error: loss-not-finite: validation after step 1: loss " "$train" lm --preset tiny --steps 1 --sample-bytes 0 --overwrite --lr inf

# A base and its adapter.
mkdir empty
expect 4 "error: no-samples: no document is left of 0 files" "${quick[@]}" --data empty
expect 13 "error: bad-base: --base: there is no directory nowhere" "${quick[@]}" --base nowhere
expect 2 "error: bad-option: --adapter lora needs a --base to adapt" "${quick[@]}" --adapter lora
expect 2 "error: bad-option: --rank has no effect without an --adapter" "${quick[@]}" --rank 8
expect 0 "" "$train" lm --preset tiny --steps 3 --sample-bytes 0 --out base
expect 0 "12288 weights beside 90560 frozen ones" "${quick[@]}" --base base --adapter lora --rank 6
[ -f lanewise-train-out/adapter_model.safetensors ] || fail "no adapter was written"
expect 2 "error: bad-option: --factor has no effect with --adapter lora" "${quick[@]}" --base base --adapter lora --factor 4
expect 11 "error: loss-not-finite: validation after step 1: " "${quick[@]}" --base base --adapter lokr --dim 4 --lr 1e30
truncate -s 100000 base/model.safetensors
expect 13 "error: bad-base: base/model.safetensors: tensor '" "${quick[@]}" --base base --adapter lora

# A directory belongs to one process at a time: --resume beside a run that has lost its terminal spoils neither.
"$train" lm --preset tiny --steps 1000000 --checkpoint-every 10 --sample-bytes 0 --out busy >/dev/null &
pid=$!
wait_for_steps busy/log.jsonl 20 $pid
expect 10 "error: out-exists: busy: another lanewise-train is running there" "$train" lm --out busy --resume
expect 10 "error: out-exists: busy: another lanewise-train is running there" "$train" lm --out busy --overwrite
kill -KILL $pid
wait $pid || true
touch file
expect 12 "error: write-failed: --out: cannot create file" "$train" lm --preset tiny --out file
expect 0 "--resume" "$train" lm --help
[ "$(grep -c -- '--' output)" -ge 25 ] || fail "--help lists few options"

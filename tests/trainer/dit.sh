#!/usr/bin/env bash
# `lanewise-train dit` from outside: SIGKILL and SIGTERM and what is continued bit for bit, the files that it leaves, its
# errors, and a short run on the default recordings that learns where the same run with its targets mixed up does not.
source "$(dirname "$0")/common.sh"
run=("$train" dit --preset tiny --steps 150 --checkpoint-every 20 --sample-steps 4 --validate-every 75 --seed 5)
number() { sed -n "s/^ *\"$1\": \([^,]*\),\{0,1\}$/\1/p" "$2"; }

expect 0 "verdict: learned=yes" "${run[@]}" --out straight --threads 2
[ "$(steps_in straight/log.jsonl)" -eq 150 ] || fail "a log of $(steps_in straight/log.jsonl) steps, not 150"
[ "$(head -c 4 straight/sample.wav)" = RIFF ] || fail "sample.wav is no WAV file"
grep -q '<polyline' straight/loss.svg || fail "no curve in loss.svg"
expect 0 "verdict: learned=no" "${run[@]}" --out ablated --ablate targets
[ "$(number linear_predictor straight/summary.json)" = "$(number linear_predictor ablated/summary.json)" ] || fail "two yardsticks"

"${run[@]}" --out broken --threads 2 >/dev/null &
pid=$!
wait_for_steps broken/log.jsonl 50 $pid
kill -KILL $pid
wait $pid && fail "the run was over before it could be killed" || true
"${run[@]}" --out broken --resume --threads 1 >output
grep -q '^resumed after step' output || fail "nothing was resumed"
"${run[@]}" --out stopped >output &
pid=$!
wait_for_steps stopped/log.jsonl 30 $pid
kill -TERM $pid
wait $pid || fail "exit code $? after SIGTERM"
grep -q 'stopped by SIGTERM after step' output || fail "no word of SIGTERM"
"$train" dit --out stopped --resume --sample-steps 4 >/dev/null
for out in broken stopped; do
  same straight/log.jsonl $out/log.jsonl
  same straight/model.safetensors $out/model.safetensors
  same straight/sample.wav $out/sample.wav
done
same straight/checkpoint-000150.safetensors broken/checkpoint-000150.safetensors

# What would change the result is refused, and so is another command's run.
expect 9 "error: resume-mismatch: --crop-max is 30, but the run to continue has 64" "${run[@]}" --out broken --resume --crop-max 30
mkdir other && cp /usr/share/sounds/alsa/Front_*.wav other
expect 9 "error: resume-mismatch: the set of recordings differs" "${run[@]}" --out broken --resume --data other
expect 8 "format 'lanewise-train dit 1', of this command it is 'lanewise-train lm 1'" "$train" lm --out broken --resume

# Data that cannot be used has a name and its path.
quick=("$train" dit --preset tiny --steps 2 --sample-steps 0 --overwrite)
mkdir empty text
expect 4 "error: no-samples: --data: there is no .wav file in empty" "${quick[@]}" --data empty
echo words >text/a.wav
expect 15 "error: bad-data: text/a.wav: is no WAV file" "${quick[@]}" --data text
head -c 5000 other/Front_Left.wav >text/a.wav
expect 15 "error: bad-data: text/a.wav: is cut short: its chunk 'data' has " "${quick[@]}" --data text
: >other/Front_Left.txt
expect 15 "error: bad-data: other/Front_Left.txt: is no caption: it is empty" "${quick[@]}" --data other
expect 3 "error: no-data: --data: there is no nowhere" "${quick[@]}" --data nowhere
mb=5
[ "$device" = cpu ] || mb=37  # the library's 32 MiB as well
expect 6 "error: out-of-memory: est " "${quick[@]}" --memory-mb $mb
grep -q 'these would fit: --batch ' output || fail "no way out"
expect 7 "error: attn-unsupported: " "${quick[@]}" --head-dim 48
expect 11 "error: loss-not-finite: " "${quick[@]}" --lr 1e30
expect 0 "--crop-max" "$train" dit --help

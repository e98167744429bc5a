#!/usr/bin/env bash
# A run killed with SIGKILL in mid-run and resumed equals one that was never interrupted, bit for bit: the log, every
# byte of the last checkpoint and the final weights. The number of threads may change on the way.
source "$(dirname "$0")/common.sh"
run=("$train" lm --preset tiny --steps 400 --checkpoint-every 50 --sample-bytes 0 --seed 5)

"${run[@]}" --out straight --threads 2 >/dev/null
[ "$(steps_in straight/log.jsonl)" -eq 400 ] || fail "a log of $(steps_in straight/log.jsonl) steps, not 400"

"${run[@]}" --out broken --threads 2 >/dev/null &
pid=$!
wait_for_steps broken/log.jsonl 130 $pid
kill -KILL $pid
wait $pid && fail "the run was over before it could be killed" || true
logged=$(steps_in broken/log.jsonl)
[ "$logged" -lt 400 ] || fail "the run had reached its last step"
newest=$(ls broken | grep '^checkpoint' | tail -n 1)
echo "ok: killed after step $logged; the newest checkpoint is $newest"

"${run[@]}" --out broken --resume --threads 1 >output
after=$(sed -n 's/^resumed after step //p' output)
[ -n "$after" ] || fail "nothing was resumed"
grep -q "^trained $((400 - after)) steps in" output || fail "steps of the part before are counted: $(grep '^trained' output)"
same straight/log.jsonl broken/log.jsonl
same straight/checkpoint-000400.safetensors broken/checkpoint-000400.safetensors
same straight/model.safetensors broken/model.safetensors
[ "$(ls broken | grep -c '^checkpoint')" -eq 2 ] || fail "more or fewer than two checkpoints are kept"
ls broken | grep -q '\.part$' && fail "a temporary file is left" || true

# Resuming a finished run changes nothing.
"${run[@]}" --out broken --resume >/dev/null
same straight/model.safetensors broken/model.safetensors

# What may change on resuming is held against the run that is continued, not against a preset.
"$train" lm --preset tiny --layers 5 --steps 2 --sample-bytes 0 --out deep >/dev/null
expect 0 "resumed after step 2" "$train" lm --out deep --resume --ckpt 5

# What would change the result is refused; so are another text and a broken checkpoint.
expect 9 "error: resume-mismatch: --lr is 0.5" "${run[@]}" --out broken --resume --lr 0.5
expect 9 "error: resume-mismatch: --steps is 500, but the run to continue has 400" "$train" lm --out broken --resume --steps 500
mkdir text && seq 5000 >text/numbers
expect 9 "error: resume-mismatch: the text, or the frozen base, differs" "$train" lm --out broken --resume --data text --documents percent
LC_ALL=C sed 's/\\"layers\\":{/\\"layers\\"?{/' broken/checkpoint-000350.safetensors >broken/checkpoint-000401.safetensors
cmp -s broken/checkpoint-000350.safetensors broken/checkpoint-000401.safetensors && fail "no options to spoil" || true
expect 8 "error: bad-checkpoint: broken/checkpoint-000401.safetensors: its options or its log cannot be read" "$train" lm --out broken --resume
rm broken/checkpoint-000401.safetensors
truncate -s 100000 broken/checkpoint-000400.safetensors
expect 8 "error: bad-checkpoint: broken/checkpoint-000400.safetensors" "$train" lm --out broken --resume
mkdir empty
expect 8 "error: bad-checkpoint: --resume: there is no checkpoint in empty" "$train" lm --out empty --resume

#!/usr/bin/env bash
# SIGTERM and SIGINT finish the step, save and exit 0, and what was stopped continues bit for bit; SIGHUP is ignored,
# also by a run whose terminal is gone; a run outlives its own executable's replacement.
source "$(dirname "$0")/common.sh"
run=("$train" lm --preset tiny --steps 400 --sample-bytes 0)
"${run[@]}" --out straight >/dev/null

for signal in TERM INT; do
  "${run[@]}" --out "$signal" >output &
  pid=$!
  wait_for_steps "$signal/log.jsonl" 60 $pid
  kill -$signal $pid
  wait $pid || fail "exit code $? after SIG$signal"
  step=$(steps_in "$signal/log.jsonl")
  [ "$step" -lt 400 ] || fail "SIG$signal came too late"
  grep -q "stopped by SIG$signal after step $step" output || { cat output >&2; fail "no word of SIG$signal at step $step"; }
  [ -s "$signal/checkpoint-$(printf %06d "$step").safetensors" ] || fail "no checkpoint of step $step"
  echo "ok: SIG$signal after step $step"
  "$train" lm --resume --out "$signal" --sample-bytes 0 >/dev/null
  same straight/log.jsonl "$signal/log.jsonl"
  same straight/model.safetensors "$signal/model.safetensors"
done

cp "$train" copy
setsid nohup ./copy lm --preset tiny --steps 400 --sample-bytes 0 --out hup >hup.txt 2>&1 </dev/null &
wait_for_steps hup/log.jsonl 30 $!
kill -HUP $!
cp "$train" newer && mv newer copy  # a build replaces the file in one step
wait $! || fail "exit code $? after SIGHUP"
same straight/model.safetensors hup/model.safetensors

ldd "$program" | awk '{ print $1 }' >libraries
grep -iE 'lanewise|trainer' libraries && fail "a shared library of this project" || true
echo "ok: no shared library of this project"

# Sourced by the scripts here: a scratch folder, and words for what must hold. $1 is lanewise-train; with "--device cuda"
# after it, lanewise-train-cuda, and every run is on the GPU.
set -euo pipefail
program=$(realpath "$1")
train=$program
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
device=${3:-cpu}
if [ "$device" != cpu ]; then
  [ "$2" = --device ] || { echo "usage: $0 lanewise-train-cuda --device cuda" >&2; exit 2; }
  train=$work/on-$device
  cat >"$train" <<END
#!/usr/bin/env bash
case \$1 in
  lm | dit) exec "$program" "\$1" --device $device "\${@:2}" ;;
  profile | twin | fit) exec "$program" "\${@:1:2}" --device $device "\${@:3}" ;;
esac
exec "$program" "\$@"
END
  chmod +x "$train"
fi

fail() {
  echo "FAIL: $1" >&2
  exit 1
}
# expect CODE TEXT COMMAND...: the command ends with CODE, and TEXT (if any) is in its output, which is left in ./output.
expect() {
  local code=$1 text=$2 got=0
  shift 2
  "$@" >output 2>&1 || got=$?
  [ "$got" -eq "$code" ] || { cat output >&2; fail "exit code $got, not $code: $*"; }
  grep -qF -- "$text" output || { cat output >&2; fail "no '$text' in the output of: $*"; }
  echo "ok: $code ${text:0:90}"
}
same() {
  cmp "$1" "$2" || fail "$1 and $2 differ"
  echo "ok: $1 = $2"
}
# steps_in LOG: training steps that a log holds.
steps_in() { if [ -f "$1" ]; then grep -c '"loss"' "$1" || true; else echo 0; fi; }
# wait_for_steps LOG COUNT PID: until the run has logged COUNT steps.
wait_for_steps() {
  for _ in $(seq 6000); do
    [ "$(steps_in "$1")" -ge "$2" ] && return
    kill -0 "$3" 2>/dev/null || fail "the run ended before step $2"
    sleep 0.01
  done
  fail "no step $2 after a minute"
}

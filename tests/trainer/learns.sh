#!/usr/bin/env bash
# The default run learns: its validation loss ends at least 0.2 nats per byte below the add-one bigram's. The same run
# without attention does not, so what is tested is attention. Training takes under two minutes on two cores, which is
# measured in processor time: the machine may be busy with other things.
source "$(dirname "$0")/common.sh"
number() { sed -n "s/^ *\"$1\": \([^,]*\),\{0,1\}$/\1/p" "$2"; }
figures() {
  echo "$1: bigram $(number bigram "$1/summary.json"), validation $(number validation_loss "$1/summary.json"), margin $(number margin "$1/summary.json"), $(number seconds "$1/summary.json") s of training ($(number processor_seconds "$1/summary.json") s of processors), $(number tokens_per_second "$1/summary.json") tokens/s, $(number threads "$1/summary.json") threads"
}
at_least() { awk "BEGIN { exit !($1 >= $2) }"; }

expect 0 "verdict: learned=yes" "$train" lm --out learns
figures learns
expect 0 "verdict: learned=no" "$train" lm --out ablated --ablate attention
figures ablated

at_least "$(number margin learns/summary.json)" 0.2 || fail "the margin is below 0.2"
at_least "$(number margin ablated/summary.json)" 0.2 && fail "without attention the bar is reached too" || true
[ "$(number bigram learns/summary.json)" = "$(number bigram ablated/summary.json)" ] || fail "two validation texts"
at_least 240 "$(number processor_seconds learns/summary.json)" || fail "training took more than two minutes of two cores"
grep -q '<polyline' learns/loss.svg || fail "no curve in loss.svg"

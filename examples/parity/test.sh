#!/usr/bin/env bash
# What parity promises about files and exit statuses. Usage: test.sh PARITY, the built program.
set -u
parity=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

# expect NAME STATUS PATTERN COMMAND...: the exit status, and a line of the output that matches the pattern.
expect() {
  local name=$1 status=$2 pattern=$3 output got
  shift 3
  output=$("$@" 2>&1)
  got=$?
  if [ $got = "$status" ] && grep -qE -- "$pattern" <<<"$output"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAIL %s: exit status %s, expected %s and /%s/ in\n%s\n' "$name" $got "$status" "$pattern" "$output"
  fi
}

shape=(--batch 2 --heads 4 --kv-heads 2 --queries 37 --keys 53 --head-dim 40 --seed 7)
expect "make" 0 'seed 7' "$parity" make "$dir/dense" "${shape[@]}" --with-bias --with-d-lse
expect "make, heads first" 0 'seed 7' "$parity" make "$dir/turned" "${shape[@]}" --order bhsd --with-bias --with-d-lse
expect "run" 0 'wrote .*/a: dbias F32 \[1, 4, 37, 53\] dk F32 \[2, 53, 2, 40\]' \
  "$parity" run "$dir/dense" "$dir/a" --mask causal_bottom_right --softcap 5
expect "check" 0 '^7 passed|^6 passed, 0 failed' "$parity" check "$dir/dense" --mask causal_bottom_right --softcap 5
expect "check, another's results" 0 '^11 passed, 0 failed' "$parity" check "$dir/dense" --mask causal_bottom_right --softcap 5 --against "$dir/a"
expect "check, results under another mask" 1 '^o .*FAIL' "$parity" check "$dir/dense" --softcap 5 --against "$dir/a"
expect "run, heads first in, dense out" 0 wrote \
  "$parity" run "$dir/turned" "$dir/b" --mask causal_bottom_right --softcap 5 --layout q=bhsd,k=bhsd,v=bhsd,d_o=bhsd
expect "strided views give the bits of dense tensors" 0 '' cmp "$dir/a" "$dir/b"
expect "run, heads first out" 0 'dq F32 \[2, 4, 37, 40\] .*lse F32 \[2, 4, 37\]|lse F32 \[2, 4, 37\]' \
  "$parity" run "$dir/dense" "$dir/c" --layout o=bhsd,dq=bhsd,lse=bhs
expect "another number of threads gives the same bits" 0 wrote "$parity" run "$dir/dense" "$dir/d" --mask causal_bottom_right --softcap 5 --threads 3
expect "the same bits" 0 '' cmp "$dir/a" "$dir/d"
expect "an f32 file in bf16" 0 'note: q converted from f32 to bf16' "$parity" check "$dir/dense" --precision bf16 --gradient f32
expect "alibi, window" 0 'dalibi_slopes .*pass' "$parity" check "$dir/dense" --mask window_bottom_right --window 9,inf --alibi bottom_right

expect "no such file" 2 'parity: .*/none: cannot open: No such file' "$parity" check "$dir/none"
expect "no such mask" 2 "'causal' is none of full causal_top_left" "$parity" check "$dir/dense" --mask causal
expect "a tensor that a mask needs" 2 "no tensor 'kv_lengths' among its 6: bias d_lse d_o k q v" "$parity" check "$dir/dense" --mask key_padding
expect "a layout that does not fit" 2 "q is \[2, 37, 4, 40\] in \[b, s, h, d\]: its heads are no multiple of k's 53" \
  "$parity" check "$dir/dense" --layout k=bhsd,v=bhsd
expect "make, innermost dimension not head_dim" 0 wrote "$parity" make "$dir/odd" "${shape[@]}" --order bsdh
expect "an innermost dimension that is not contiguous" 2 'forward: bad_stride: q' "$parity" check "$dir/odd" --layout q=bsdh,k=bsdh,v=bsdh,d_o=bsdh
expect "a head dim that is not compiled" 2 'head dims 8 16 .* not 48' bash -c "$parity make $dir/e --head-dim 48 && $parity check $dir/e"
expect "cuda" 2 'built without CUDA.*parity_cuda' "$parity" check "$dir/dense" --device cuda
expect "no command" 106 'subcommand is required' "$parity"

expect "a zero upstream gradient is no pass" 1 'FAIL\(vacuous\)' "$parity" grid --quick --upstream 0 --case "grouped heads"
expect "a part of the grid" 0 '^12 passed, 0 failed' "$parity" grid --quick --case "grouped heads"
expect "no such case" 2 'no case ran' "$parity" grid --quick --case "no such case"

echo "$passed passed, $failed failed"
[ $failed = 0 ]

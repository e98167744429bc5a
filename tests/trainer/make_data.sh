#!/usr/bin/env bash
# Made-up albums: the same bytes from the same seed on every machine, songs and captions of the lengths that are
# promised, and a run that reads them.
source "$(dirname "$0")/common.sh"
sum_of() { (cd "$1" && sha256sum -- * | sha256sum | cut -d' ' -f1); }

expect 0 "albumF, seed 42: 8 songs, " "$train" make-data
expect 0 "albumI, seed 42: 12 songs, " "$train" make-data --preset albumI --seed 42
[ "$(sum_of albumF)" = e3a88bf780412f40592370eee046e6a6669f6a43c6646e51d844b7e84bf615d6 ] || fail "albumF is $(sum_of albumF)"
[ "$(sum_of albumI)" = 243ad9ae8a6bb8828d7fcdcbd2367716f6be146e6e4488b1198193628d9863a6 ] || fail "albumI is $(sum_of albumI)"
expect 0 "" "$train" make-data --seed 43 --out other
[ "$(sum_of other)" != "$(sum_of albumF)" ] || fail "the seed changes nothing"

# 1600 samples of two bytes a second behind a header of 44; the captions' bytes behind each other, with a line's end.
[ "$(stat -c %s albumI/song01.wav)" -eq $((44 + 240 * 3200)) ] || fail "the first song is not of 240 s"
[ "$(stat -c %s albumI/song02.wav)" -eq $((44 + 87 * 3200)) ] || fail "the second song is not of 87 s"
[ "$(stat -c %s albumI/song01.txt)" -eq 1878 ] || fail "the first caption is not of 1877 bytes"

expect 0 "data: 8 recordings of 1600 samples per second" "$train" dit --data albumF --preset tiny --crop 60 --patch 2 --steps 2 --batch 1 --sample-steps 0
expect 0 "      6000 " "$train" fit dit --data albumI --preset tiny --patch 2 --batch 1 --longest 6000 --vram-budget-mb 4096
expect 10 "error: out-exists: albumF is not empty" "$train" make-data
expect 2 "error: bad-option: --preset: albumX is neither albumF nor albumI" "$train" make-data --preset albumX
expect 5 "error: disk-low" "$train" make-data --out full --min-free-gb 1000000

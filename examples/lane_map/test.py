#!/usr/bin/env python3
"""test.py LANE_MAP IMAGES: the program's tables against the sentences of the PTX manual, its drawings against IMAGES.

The sentences (PTX ISA, "Matrix fragments for mma.m16n8k8", "... mma.m16n8k16", "Register fragments for
wgmma.mma_async.m64nNk16") give the row and column of fragment element i of a thread from

  groupID = %laneid >> 2,  threadID_in_group = %laneid % 4

and, for wgmma, from the warp's rank in the warpgroup. They are written out below as the manual words them.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def group(lane):
    return lane >> 2


def thread(lane):
    return lane % 4


# (instruction, operand): (threads, elements, row(lane, i), column(lane, i))
MANUAL = {
    # "row = groupID for a0 and a2, groupID + 8 for a1 and a3; col = threadID_in_group for a0 and a1,
    #  threadID_in_group + 4 for a2 and a3"
    ("m16n8k8_tf32", "a"): (32, 4, lambda t, i: group(t) if i in (0, 2) else group(t) + 8,
                            lambda t, i: thread(t) if i in (0, 1) else thread(t) + 4),
    # "row = threadID_in_group for b0, threadID_in_group + 4 for b1; col = groupID"
    ("m16n8k8_tf32", "b"): (32, 2, lambda t, i: thread(t) if i == 0 else thread(t) + 4, lambda t, i: group(t)),
    # "row = groupID for c0 and c1, groupID + 8 for c2 and c3; col = (threadID_in_group * 2) + (i & 0x1)"
    ("m16n8k8_tf32", "c"): (32, 4, lambda t, i: group(t) if i < 2 else group(t) + 8, lambda t, i: thread(t) * 2 + (i & 1)),
    # "row = groupID for ai where 0 <= i < 2 || 4 <= i < 6, groupID + 8 otherwise;
    #  col = (threadID_in_group * 2) + (i & 0x1) for ai where i < 4, (threadID_in_group * 2) + (i & 0x1) + 8 where i >= 4"
    ("m16n8k16", "a"): (32, 8, lambda t, i: group(t) if 0 <= i < 2 or 4 <= i < 6 else group(t) + 8,
                        lambda t, i: thread(t) * 2 + (i & 1) + (0 if i < 4 else 8)),
    # "row = (threadID_in_group * 2) + (i & 0x1) for bi where i < 2, + 8 where i >= 2; col = groupID"
    ("m16n8k16", "b"): (32, 4, lambda t, i: thread(t) * 2 + (i & 1) + (0 if i < 2 else 8), lambda t, i: group(t)),
    ("m16n8k16", "c"): (32, 4, lambda t, i: group(t) if i < 2 else group(t) + 8, lambda t, i: thread(t) * 2 + (i & 1)),
    # Each warp of the warpgroup holds 16 rows: warp %warpid % 4 rows 16 (%warpid % 4) ... + 15.
    ("wgmma_m64", "a"): (128, 8, lambda t, i: 16 * (t // 32) + (group(t % 32) if 0 <= i < 2 or 4 <= i < 6 else group(t % 32) + 8),
                         lambda t, i: thread(t) * 2 + (i & 1) + (0 if i < 4 else 8)),
    ("wgmma_m64", "c"): (128, 4, lambda t, i: 16 * (t // 32) + (group(t % 32) if i < 2 else group(t % 32) + 8),
                         lambda t, i: thread(t) * 2 + (i & 1)),
}
DRAWN = [(i, o) for i, o in MANUAL if (i, o) != ("wgmma_m64", "a")]
failures = []


def check(good, what):
    if not good:
        failures.append(what)


def run(program, instruction, operand, *more):
    return subprocess.run([program, "--instruction", instruction, "--operand", operand, *more], capture_output=True, text=True)


def table(text):
    """(row, column) -> (lane, element)"""
    lines = text.splitlines()
    columns, found = [int(c) for c in lines[1].split()], {}
    for line in lines[2:]:
        cells = line.split()
        if not cells or not cells[0].isdigit():
            break
        for column, cell in zip(columns, cells[1:], strict=True):
            lane, element = re.fullmatch(r"T(\d+):[abc](\d+)", cell).groups()
            found[int(cells[0]), column] = int(lane), int(element)
    return found


def main(program, images):
    tables = {}
    for (instruction, operand), (threads, elements, row, column) in MANUAL.items():
        tables[instruction, operand] = table(run(program, instruction, operand).stdout)
        manual = {(row(t, i), column(t, i)): (t, i) for t in range(threads) for i in range(elements)}
        check(len(manual) == threads * elements, f"{instruction} {operand}: the manual's map is no bijection")
        check(tables[instruction, operand] == manual, f"{instruction} {operand}: the table differs from the manual")
    # docs/lane_maps.md: a lane's a registers and c registers name the same place in 16 of 128 cases.
    a, c = tables["m16n8k8_tf32", "a"], tables["m16n8k8_tf32", "c"]
    check(sum(a[place] == c[place] for place in a) == 16, "tf32: a and c do not agree in 16 places")
    said = run(program, "m16n8k8_tf32", "c").stdout
    check("feed: permute_k\na0 = c0, a1 = c2, a2 = c1, a3 = c3\nslot of k: 0 1 2 3 4 5 6 7\nrow of b:  0 2 4 6 1 3 5 7\n" in said,
          "tf32: the feed is not told")
    refused = run(program, "wgmma_m64", "b")
    check(refused.returncode == 2 and "shared memory" in refused.stderr, "wgmma has a map of b")
    check(run(program, "m8n8k4", "a").returncode != 0, "an unknown instruction is accepted")
    check(run(program, "m16n8k16", "a", "--svg", "/no/such/folder/x.svg").returncode == 2, "an unwritable file is no error")
    with tempfile.TemporaryDirectory() as folder:
        for instruction, operand in DRAWN:
            name = f"lane_map_{instruction}_{operand}.svg"
            run(program, instruction, operand, "--svg", f"{folder}/{name}")
            kept = Path(images, name)
            check(kept.is_file() and kept.read_text() == Path(folder, name).read_text(),
                  f"{kept} is not what the program draws: write it again with --svg")
    for failure in failures:
        print(f"FAIL {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

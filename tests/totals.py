#!/usr/bin/env python3
"""totals.py FAILED LOG...: names what failed in Meson's testlog.json files and closes with 'N passed, N failed, N skipped'.

Exits 1 when a test failed, when none ran, or when FAILED is yes: then meson itself was not content.
"""
import json
import sys
from pathlib import Path

PASSED, SKIPPED = {"OK", "EXPECTEDFAIL"}, {"SKIP"}


def main() -> int:
    content, logs = sys.argv[1] != "yes", sys.argv[2:]
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for log in logs:
        if not Path(log).is_file():
            print(f"{log}: not there; meson test ended before any test")
            content = False
            continue
        for line in Path(log).read_text(encoding="utf-8").splitlines():
            test = json.loads(line)
            kind = "passed" if test["result"] in PASSED else "skipped" if test["result"] in SKIPPED else "failed"
            count[kind] += 1
            if kind != "passed":
                print(f"{kind}: {test['name']} ({test['result']}, {test['duration']:.1f} s, in {Path(log).parts[0]})")
    content = content and count["failed"] == 0 and count["passed"] > 0
    if not content and count["failed"] == 0:
        print("meson test was not content, or no test ran; its words are above")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 0 if content else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""error_text.py FILE -- COMPILER FLAGS...: FILE must fail with each text after `// error:`, and compile with -DCONTROL.

What stands after `// flags:` is added where it must fail.
"""
import os
import subprocess
import sys


def main() -> int:
    file, compiler = sys.argv[1], sys.argv[3:]
    with open(file, encoding="utf-8") as source:
        lines = source.read().splitlines()
    texts = [line.split("// error:", 1)[1].strip() for line in lines if "// error:" in line]
    flags = [flag for line in lines if "// flags:" in line for flag in line.split("// flags:", 1)[1].split()]
    if not texts:
        print(f"{file}: no line with // error:")
        return 1
    plain = {"capture_output": True, "text": True, "env": {**os.environ, "LC_ALL": "C"}}  # English, ASCII quotes
    broken = subprocess.run([*compiler, *flags, file], **plain)
    mended = subprocess.run([*compiler, "-DCONTROL", file], **plain)
    failures = [f"the compiler does not say: {text}" for text in texts if text not in broken.stderr]
    if broken.returncode == 0:
        failures.append("compiles, though it must not")
    if mended.returncode != 0:
        failures.append(f"fails with -DCONTROL:\n{mended.stderr}")
    for failure in failures:
        print(f"{file}: {failure}")
    if failures:
        print(f"It says:\n{broken.stderr}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

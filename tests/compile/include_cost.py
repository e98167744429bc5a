#!/usr/bin/env python3
"""include_cost.py LIMIT HEADER -- COMPILER FLAGS...: HEADER may add at most LIMIT preprocessed lines to an empty .cpp."""
import subprocess
import sys


def lines(compiler: list[str], *more: str) -> int:
    run = subprocess.run([*compiler, "-E", *more, "-x", "c++", "/dev/null"], capture_output=True, text=True, check=True)
    return run.stdout.count("\n")


def main() -> int:
    limit, header, compiler = int(sys.argv[1]), sys.argv[2], sys.argv[4:]
    cost = lines(compiler, "-include", header) - lines(compiler)
    print(f"{header} adds {cost} preprocessed lines; at most {limit} are allowed")
    return 0 if 0 < cost <= limit else 1


if __name__ == "__main__":
    sys.exit(main())

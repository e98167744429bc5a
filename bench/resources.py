#!/usr/bin/env python3
"""The resources of the compiled instances, bench/results/resources.csv.

  resources.py rows                      a line for every row of tests/instances and architecture
  resources.py compile FOLDER NAME ARCH  compiles one into FOLDER, unless it is there already
  resources.py table FOLDER              writes the table from what FOLDER holds
  resources.py check                     exits 1 where the table lacks a row, shows a spill, a stack frame, a compilation
                                         beyond 30 s of CPU time or 2 GB, or is older than the kernels

resources.sh runs the first three. A line's stamp is a hash of the row and of the kernel headers without comments and
white space, so that only a change of code makes the table old; what only sm90/ includes counts for sm_90a alone.
"""
import csv
import hashlib
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "bench/results/resources.csv"
INSTANCES = ROOT / "tests/instances"
ARCHITECTURES = ("80", "120", "90a")
COLUMNS = ("instance", "architecture", "kernel", "registers", "spill_bytes", "stack_bytes", "shared_bytes", "cpu_seconds",
           "peak_mib", "stamp")
MOST_SECONDS, MOST_MIB = 30, 2e9 / 2**20
NVCC = ["nvcc", "-std=c++20", f"-I{ROOT / 'include'}", f"-I{INSTANCES}"]


def instances():
    """Name -> (config, variant) of the list in tests/instances/meson.build."""
    text = (INSTANCES / "meson.build").read_text()
    return {name: (config, variant)
            for name, config, variant in re.findall(r"^  \['(\w+)', '([^']*)', '(\w+)', (?:true|false)\]", text, re.M)}


def code(path):
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.S)
    return re.sub(r"\s+", "", text)


def kernel_headers(path, wgmma, found):
    """Adds to `found` the headers of cuda/ that `path` includes, itself too; those of sm90/ only where `wgmma`."""
    if path in found or (path.parent.name == "sm90" and not wgmma):
        return found
    found.add(path)
    for name in re.findall(r'#include "([^"]+)"', path.read_text()):
        if "cuda" in (inner := (path.parent / name).resolve()).parts:
            kernel_headers(inner, wgmma, found)
    return found


def stamp(name, architecture):
    headers = kernel_headers(ROOT / "include/lanewise/attention.cuh", architecture == "90a", set())
    text = "\n".join([*instances()[name], *map(code, [INSTANCES / "variants.hpp", INSTANCES / "instance.cu.in", *sorted(headers)])])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def source(name):
    config, variant = instances()[name]
    text = (INSTANCES / "instance.cu.in").read_text()
    return text.replace("@name@", name).replace("@config@", config).replace("@variant@", variant)


def kernels(report, architecture):
    """What ptxas -v says of each entry function. The image of a kernel_sm90a is empty for other chips: left out."""
    found = []
    for part in re.split(r"Compiling entry function ", report)[1:]:
        if "kernel_sm90a" in part.split("'")[1] and architecture != "90a":
            continue
        number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
        found.append({"symbol": re.match(r"'([^']+)'", part)[1], "registers": number(r"Used (\d+) registers"),
                      "spill_bytes": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                      "stack_bytes": number(r"(\d+) bytes stack frame"), "static_shared": number(r"(\d+) bytes smem")})
    return found


def compile_one(folder, name, architecture):
    kept = folder / f"{name}.{architecture}.json"
    if kept.exists() and json.loads(kept.read_text())["stamp"] == stamp(name, architecture):
        return 0
    begun = stamp(name, architecture)
    cu = folder / f"{name}.{architecture}.cu"
    cu.write_text(source(name))
    run = subprocess.run([*NVCC, "-O3", f"-arch=sm_{architecture}", "-Xptxas", "-v", "-c", cu, "-o", cu.with_suffix(".o")],
                         capture_output=True, text=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # nvcc and all that it started; memory: the largest process
    serialised = re.search(r"C75\d\d[^\n]*", run.stderr)
    if run.returncode or serialised:
        print(f"{name} for sm_{architecture}: {serialised[0] if serialised else run.stderr}")
        return 255  # xargs stops
    kept.write_text(json.dumps({"stamp": begun, "kernels": kernels(run.stderr, architecture), "peak_mib": used.ru_maxrss // 1024,
                                "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}))
    print(f"{name} for sm_{architecture}: {used.ru_utime + used.ru_stime:.1f} s", flush=True)
    return 0


def arguments(text):
    """The template arguments in `name<...>`, at the outermost level."""
    depth, out = 0, [""]
    for c in text[text.index("<") + 1:text.rindex(">")]:
        depth += (c in "<{([") - (c in ">})]")
        if c == "," and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return [a.strip() for a in out]


def demangled(symbols):
    """Symbol -> the kernel struct of gpu::kernel<struct> or gpu::kernel_sm90a<struct>."""
    names = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    return {s: arguments(re.match(r"void lanewise::gpu::\w+(<.*>)\(", n)[1])[0] for s, n in zip(symbols, names.splitlines())}


def short(struct):
    """sm80::key_gradient_kernel<true, false>: the struct without its config, tuning and variant."""
    name, parts = struct.removeprefix("lanewise::"), arguments(struct) if "<" in struct else []
    numbers = [a for a in parts if re.fullmatch(r"true|false|\d+", a)]
    return name.split("<")[0] + (f"<{', '.join(numbers)}>" if numbers else "")


def dynamic_shared(structs, folder):
    """Struct -> bytes of shared memory that launch() asks for. Only the kernel structs know: a program prints them."""
    lines = [f'  std::printf("%d\\n", int({s}::shared_bytes));' for s in structs]
    cu = folder / "shared_bytes.cu"
    cu.write_text("\n".join(["#include <cstdio>", "#include <lanewise/attention.cuh>", '#include "variants.hpp"',
                             "int main() {", *lines, "}", ""]))
    subprocess.run([*NVCC, "-O0", "-arch=sm_80", cu, "-o", folder / "shared_bytes"], check=True)
    out = subprocess.run([folder / "shared_bytes"], capture_output=True, text=True, check=True).stdout
    return dict(zip(structs, map(int, out.split())))


def write_table(folder):
    runs = {}
    for name in instances():
        for architecture in ARCHITECTURES:
            kept = folder / f"{name}.{architecture}.json"
            if kept.exists():
                runs[name, architecture] = json.loads(kept.read_text())
    struct = demangled(sorted({k["symbol"] for run in runs.values() for k in run["kernels"]}))
    shared = dynamic_shared(sorted(set(struct.values())), folder)
    with TABLE.open("w", newline="") as out:
        rows = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
        rows.writeheader()
        for (name, architecture), run in runs.items():
            for k in run["kernels"]:
                s = struct[k["symbol"]]
                rows.writerow(run | k | {"instance": name, "architecture": "sm_" + architecture, "kernel": short(s),
                                         "shared_bytes": k["static_shared"] + shared[s]})
    print(f"wrote {TABLE}")
    return 0


def check():
    table = list(csv.DictReader(TABLE.read_text().splitlines())) if TABLE.exists() else []
    faults = []
    for name in instances():
        for architecture in ARCHITECTURES:
            rows = [r for r in table if (r["instance"], r["architecture"]) == (name, "sm_" + architecture)]
            where = f"{name} for sm_{architecture}"
            if not rows:
                faults.append(f"{where}: not in the table")
            elif rows[0]["stamp"] != stamp(name, architecture):
                faults.append(f"{where}: the table is older than the kernels")
            for r in rows:
                if int(r["spill_bytes"]) or int(r["stack_bytes"]):
                    faults.append(f"{where}: {r['kernel']} has {r['spill_bytes']} bytes of spills, a stack of {r['stack_bytes']}")
            if rows and (float(rows[0]["cpu_seconds"]) > MOST_SECONDS or float(rows[0]["peak_mib"]) > MOST_MIB):
                faults.append(f"{where}: compiled in {rows[0]['cpu_seconds']} s of CPU time and {rows[0]['peak_mib']} MiB")
    print("\n".join(faults or [f"{len(table)} kernels of {len(instances())} instances: no spill, none slow to compile"]))
    if faults:
        print(f"faults: {len(faults)}; bench/resources.sh writes the table")
    return bool(faults)


def main():
    command, rest = sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]
    if command == "rows":
        print("\n".join(f"{name} {architecture}" for architecture in ARCHITECTURES for name in instances()))
        return 0
    if command == "compile" and len(rest) == 3:
        return compile_one(Path(rest[0]), *rest[1:])
    if command == "table" and len(rest) == 1:
        return write_table(Path(rest[0]))
    if command == "check":
        return check()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The bars of bench/attention_cpu over its JSON (--benchmark_out=FILE --benchmark_out_format=json).

  summarise.py RUN.json [--save OUT.json --command "..."]

Prints a line a row (median GFLOP/s, percent of the FMA rate measured in the same run, spread, memory beside inputs and
outputs) and a line a bar; exits 1 when a bar fails, 2 when a row that a bar needs is missing. Rates are by the clock and,
beside it, by the CPU time of all threads (FLOP x threads / CPU seconds): on a machine where other programs take a share of
the cores the second still shows the kernels' rate, without what threads lose by waiting for each other. The bars are for
the clock; --by cpu asks them of the CPU time. --save writes the figures with chip, date, commit and command, for
make_tables.py; RUN.json may be such a file.
"""
import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path

# Direction -> least percent of the FMA rate; and least chain time over lanewise time, full and causal.
PEAK = {"forward": 60, "backward": 50}
CHAIN = {("forward", "full"): 1.0, ("forward", "causal"): 2.0, ("backward", "full"): 0.5, ("backward", "causal"): 1.0}
EXPECTED = [f"{d}/f32/d{n}/gqa1/{m}/b1/s{s}" for d in PEAK for n in (64, 128) for m in ("full", "causal") for s in (1024, 4096)]


def read(path):
    """Name -> figures; seconds in the order they were measured. cpu: CPU seconds of all threads."""
    run, rows = json.loads(path.read_text()), {}
    if "rows" in run:  # what --save wrote
        return {"date": run["date"], "load_avg": run["load"]}, run["threads"], run["rows"]
    for b in run["benchmarks"]:
        if b["run_type"] != "iteration" or b.get("error_occurred"):
            continue
        name = b["run_name"].removesuffix("/process_time/real_time")
        row = rows.setdefault(name, {"milliseconds": [], "cpu_milliseconds": [], "gflops_each": []})
        row["milliseconds"].append(b["real_time"])
        row["cpu_milliseconds"].append(b["cpu_time"])
        row["gflops_each"].append(b["gflops"])
        row |= {k: b[k] for k in ("live", "saved_bytes", "workspace_bytes") if k in b}
    threads = int(run["context"]["threads"])
    for row in rows.values():
        row["gflops"] = statistics.median(row["gflops_each"])
        row["cpu_gflops"] = statistics.median(
            g * threads * m / c for g, m, c in zip(row["gflops_each"], row["milliseconds"], row["cpu_milliseconds"]))
        row["spread"] = (max(row["milliseconds"]) - min(row["milliseconds"])) / statistics.median(row["milliseconds"])
        # Below 1 the threads were kept from running by other programs (or by uneven work).
        row["share"] = statistics.median(c / (threads * m) for c, m in zip(row["cpu_milliseconds"], row["milliseconds"]))
    return run["context"], threads, rows


def verdicts(rows, peak, rate):
    for name in EXPECTED:
        direction, _, _, _, mask = name.split("/")[:5]
        row, chain = rows[name], rows["chain/" + name]
        yield name, "percent of FMA rate", 100 * row[rate] / peak, PEAK[direction]
        yield name, "times the OpenBLAS chain", row[rate] / chain[rate], CHAIN[direction, mask]


def chip():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--by", choices=["clock", "cpu"], default="clock", help="what the bars are asked of")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--command", default="", help="the command that made RUN.json, kept with --save")
    options = parser.parse_args()
    context, threads, rows = read(options.run)
    peaks = [n for n in rows if n.startswith("peak/")]
    missing = [n for e in EXPECTED for n in (e, "chain/" + e) if n not in rows] + ([] if peaks else ["peak/fma"])
    for name in missing:
        print(f"missing: {name}")
    if missing:
        return 2
    rate = "gflops" if options.by == "clock" else "cpu_gflops"
    peak = rows[peaks[0]]
    print(f"{peaks[0]}: {peak['gflops']:.1f} GFLOP/s by the clock, {peak['cpu_gflops']:.1f} by CPU time, {threads} threads, "
          f"load {context['load_avg']}")
    for name, row in rows.items():
        if name.startswith("peak/"):
            continue
        print(f"{name:48} {row['gflops']:7.1f} GFLOP/s {100 * row['gflops'] / peak['gflops']:5.1f} % of peak (CPU time "
              f"{row['cpu_gflops']:.1f}, {100 * row['cpu_gflops'] / peak['cpu_gflops']:.1f} %), spread "
              f"{100 * row['spread']:4.0f} %, share of the cores {100 * row['share']:4.0f} %, live {row['live']:.3f}, "
              f"kept {row['saved_bytes'] / 2**20:.2f} MiB, scratch {row['workspace_bytes'] / 2**20:.2f} MiB")
    good = True
    for name, what, value, bar in verdicts(rows, peak[rate], rate):
        good &= value >= bar
        print(f"{'PASS' if value >= bar else 'FAIL'} {name}: {value:.2f} {what}, bar {bar}")
    if options.save:
        root = Path(__file__).resolve().parent
        commit = subprocess.run(["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        options.save.write_text(json.dumps({
            "chip": chip(), "date": context["date"], "commit": commit.stdout.strip(), "command": options.command,
            "threads": threads, "load": context["load_avg"], "rows": rows}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

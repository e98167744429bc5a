#!/usr/bin/env python3
"""Tables and plot of docs/performance.md from bench/results.

  make_tables.py            rewrites the tables between the markers of docs/performance.md, and docs/performance.svg
  make_tables.py --check    exits 1 when either differs from what the results say
"""
import argparse
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, PLOT = ROOT / "docs/performance.md", ROOT / "docs/performance.svg"


def results(name):
    path = ROOT / "bench/results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def origin(run):
    load = ", ".join(f"{x:.1f}" for x in run["load"])
    return (f"`{run['command']}`; {run['chip']}, {run['threads']} threads, commit {run['commit']}, {run['date']}, load {load}.\n")


def cuda_origin(run):
    return f"`{run['command']}`; {run['chip']}, driver {run['driver']}, PyTorch {run['torch']}, commit {run['commit']}, {run['date']}.\n"


def tflops(row):
    """Of lanewise, in a row of peers.py."""
    return row["flop"] / statistics.median(row["seconds"]["lanewise"]) / 1e12


def cpu_table(run):
    """Rates by CPU time, since they carry over between loads; the clock beside them."""
    rows = run["rows"]
    peak = next(r for n, r in rows.items() if n.startswith("peak/"))
    out = [origin(run), f"FMA rate {peak['gflops']:.0f} GFLOP/s by the clock, {peak['cpu_gflops']:.0f} by CPU time.\n",
           "| row | GFLOP/s, clock | of peak | GFLOP/s, CPU time | of peak | chain: clock | CPU time | live | scratch + kept, MiB | chain's |",
           "|---|---|---|---|---|---|---|---|---|---|"]
    for name, r in rows.items():
        if name.startswith(("peak/", "chain/")):
            continue
        chain = rows.get("chain/" + name)
        memory = lambda x: f"{(x['workspace_bytes'] + x['saved_bytes']) / 2**20:.1f}" if x else "-"
        times = lambda key: f"{r[key] / chain[key]:.2f}x" if chain else "-"
        out.append(f"| {name} | {r['gflops']:.0f} | {100 * r['gflops'] / peak['gflops']:.0f} % | {r['cpu_gflops']:.0f} | "
                   f"{100 * r['cpu_gflops'] / peak['cpu_gflops']:.0f} % | {times('gflops')} | {times('cpu_gflops')} | "
                   f"{r['live']:.3f} | {memory(r)} | {memory(chain)} |")
    return "\n".join(out) + "\n"


def peers_table(run):
    out = [origin(run), f"PyTorch {run['torch']}.\n",
           "| row | lanewise, GFLOP/s | PyTorch | ratio, clock | ratio, CPU time | error, lanewise | PyTorch |", "|---|---|---|---|---|---|---|"]
    for r in run["rows"]:
        rate = {k: r["flop"] / statistics.median(v) / 1e9 for k, v in r["seconds"].items()}
        out.append(f"| {r['name']} | {rate['lanewise']:.0f} | {rate['torch']:.0f} | {r['ratio']:.2f} | {r['cpu_ratio']:.2f} | "
                   f"{r['errors']['lanewise']:.1e} | {r['errors']['torch']:.1e} |")
    out += ["", "| geometric mean | clock | CPU time |", "|---|---|---|"]
    for dtype, direction in dict.fromkeys((r["dtype"], r["direction"]) for r in run["rows"]):
        these = [r for r in run["rows"] if (r["dtype"], r["direction"]) == (dtype, direction)]
        mean = lambda key: f"{statistics.geometric_mean([r[key] for r in these]):.2f}"
        out.append(f"| {dtype} {direction} | {mean('ratio')} | {mean('cpu_ratio')} |")
    return "\n".join(out) + "\n"


def peers_cuda_table(run):
    """TFLOP/s of lanewise and how many times as long each contestant takes."""
    names = list(dict.fromkeys(n for r in run["rows"] for n in r["ratios"]))
    out = [cuda_origin(run),
           f"| row | live | TFLOP/s | error | {' | '.join(names)} |", "|---|---|---|---|" + "---|" * len(names)]
    for r in run["rows"]:
        cells = [f"{r['ratios'][n]:.2f}x ({r['errors'][n]:.1e})" if n in r["ratios"] else "-" for n in names]
        out.append(f"| {r['name']} | {r['live']:.3f} | {tflops(r):.0f} | {r['errors']['lanewise']:.1e} | {' | '.join(cells)} |")
    out += ["", f"| geometric mean | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for dtype, direction in dict.fromkeys((r["dtype"], r["direction"]) for r in run["rows"]):
        cells = []
        for n in names:
            these = [r["ratios"][n] for r in run["rows"] if (r["dtype"], r["direction"]) == (dtype, direction) and n in r["ratios"]]
            cells.append(f"{statistics.geometric_mean(these):.2f}x" if these else "-")
        out.append(f"| {dtype} {direction} | {' | '.join(cells)} |")
    for name, rows in run["unavailable"].items():
        for why in dict.fromkeys(rows.values()):
            out.append(f"\n{name} is missing on {sum(w == why for w in rows.values())} shapes: {why}")
    return "\n".join(out) + "\n"


def grid_table(against):
    """A run of peers.py over the grid: TFLOP/s of lanewise and the least time of the contestants `against` over lanewise's,
    a row for head dim, group and mask, a column for each length."""

    def table(run):
        cells, ratios = {}, {}
        for r in run["rows"]:
            _, _, head_dim, mask, _, heads, length = r["name"].split("/")
            group = f", {int(heads[1:].split('x')[0]) // int(heads.split('x')[1])} query heads a key head" if "x" in heads else ""
            ratio = min(r["ratios"][n] for n in against if n in r["ratios"])
            cells.setdefault((head_dim, group, mask), {})[length] = f"{tflops(r):.0f} {ratio:.2f}"
            ratios.setdefault(head_dim, []).append(ratio)
        lengths = sorted({n for row in cells.values() for n in row}, key=lambda n: int(n[1:]))
        out = [cuda_origin(run),
               f"| D | mask | {' | '.join('S ' + n[1:] for n in lengths)} |", "|---|---|" + "---|" * len(lengths)]
        for (head_dim, group, mask), row in sorted(cells.items(), key=lambda x: (int(x[0][0][1:]), x[0][2] != "full", x[0][1])):
            out.append(f"| {head_dim[1:]}{group} | {mask} | {' | '.join(row.get(n, '-') for n in lengths)} |")
        mean = "; ".join(f"D {d[1:]}: {statistics.geometric_mean(x):.3f}, least {min(x):.2f} of {len(x)}" for d, x in ratios.items())
        everything = statistics.geometric_mean([x for these in ratios.values() for x in these])
        return "\n".join(out) + f"\n\nGeometric means over {'the better of ' * (len(against) > 1)}{' and '.join(against)}: {mean}; all: {everything:.3f}.\n"

    return table


def plot(run):
    """Percent of the FMA rate by CPU time, f32: lanewise and the chain, a pair of bars a row."""
    rows = run["rows"]
    peak = next(r for n, r in rows.items() if n.startswith("peak/"))["cpu_gflops"]
    names = [n for n in rows if "chain/" + n in rows]
    height, left, scale = 34 * len(names) + 50, 250, 5
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 100 * scale + 60}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="16">percent of the FMA rate, by CPU time: lanewise (dark), OpenBLAS chain (light)</text>']
    for percent in range(0, 101, 20):
        x = left + percent * scale
        out.append(f'<line x1="{x}" y1="24" x2="{x}" y2="{height - 22}" stroke="#ccc"/><text x="{x}" y="{height - 6}" text-anchor="middle">{percent}</text>')
    for i, name in enumerate(names):
        y = 30 + 34 * i
        out.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{name}</text>')
        for offset, key, colour in ((0, name, "#1f4e79"), (13, "chain/" + name, "#9fbfdf")):
            value = 100 * rows[key]["cpu_gflops"] / peak
            out.append(f'<rect x="{left}" y="{y + offset}" width="{value * scale:.1f}" height="12" fill="{colour}"/>'
                       f'<text x="{left + value * scale + 4:.1f}" y="{y + offset + 10}" font-size="10">{value:.0f}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    old = page = PAGE.read_text()
    tables = (("cpu", cpu_table), ("peers_cpu", peers_table), ("peers_cuda", peers_cuda_table),
              ("cuda_sm90_forward", grid_table(("cudnn", "flash"))), ("cuda_sm90_backward", grid_table(("cudnn",))))
    for name, table in tables:
        if (run := results(name)) is not None:
            page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m: m[1] + table(run) + m[2], page, flags=re.S)
    drawn = plot(results("cpu")) if results("cpu") else None
    stale = page != old or (drawn is not None and (not PLOT.exists() or PLOT.read_text() != drawn))
    if options.check:
        print("stale: run bench/make_tables.py" if stale else "docs/performance.md agrees with bench/results")
        return int(stale)
    PAGE.write_text(page)
    if drawn is not None:
        PLOT.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())

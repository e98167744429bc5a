#!/usr/bin/env python3
"""lanewise beside PyTorch's scaled_dot_product_attention, forward and backward, in one process.

Both read the same tensors, [batch, heads, sequence, head_dim] contiguous (PyTorch's own order), with the same number of
threads. Runs alternate within every repetition, in an order drawn anew each time; the figure is the median. The error
of each is the relative Frobenius distance from attention in f64 on the same inputs. Beside the ratio of times on the
clock stands the ratio of CPU times of all threads, which other programs on the machine disturb less; PyTorch's threads
spin while they wait, and on a busy machine that counts as its CPU time. With --threads 1 nothing spins.

  peers.py --device cpu --library BUILD/bench/liblanewise_peers.a [--json OUT]

needs torch. The library is linked into a private shared object first, so a rebuild cannot change a running measurement.
"""
import argparse
import ctypes
import datetime
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as functional

BARS = {"f32": 1.2, "bf16": 1.0}  # PyTorch's time over lanewise's, forward and backward each
PAUSE = 0.05  # seconds before each timed run: OpenMP's threads spin for milliseconds after theirs, on cores that the other needs
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
OUTPUTS = {"forward": ("o",), "backward": ("dq", "dk", "dv")}


class Problem(ctypes.Structure):
    _fields_ = [("precision", ctypes.c_int), ("causal", ctypes.c_int)] + [
        (name, ctypes.c_int64) for name in ("batch", "q_length", "k_length", "q_heads", "kv_heads", "head_dim")]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4)]

    @classmethod
    def of(cls, x):
        """A [batch, heads, sequence, ...] tensor in lanewise's order of dimensions."""
        b, h, s, d = x.stride() if x.dim() == 4 else (*x.stride(), 1)
        return cls(x.data_ptr(), (b, s, h, d))


class Row:
    """The tensors of one shape, the same for every backend."""

    def __init__(self, dtype, head_dim, length, causal, heads, device):
        self.dtype, self.head_dim, self.length, self.causal, self.heads = dtype, head_dim, length, causal, heads
        draw = torch.Generator().manual_seed(head_dim * length)
        self.q, self.k, self.v, self.d_o = (
            torch.randn(1, heads, length, head_dim, generator=draw).to(device, TYPES[dtype]) for _ in range(4))

    def name(self, direction):
        return f"{direction}/{self.dtype}/d{self.head_dim}/{'causal' if self.causal else 'full'}/b1/h{self.heads}/s{self.length}"

    def flop(self, direction):
        live = (self.length + 1) / (2 * self.length) if self.causal else 1
        forward = 4 * self.heads * self.length**2 * self.head_dim * live
        return forward if direction == "forward" else 2.5 * forward

    def exact(self):
        """o, dq, dk, dv in f64, head by head."""
        found = {name: [] for name in ("o", "dq", "dk", "dv")}
        for h in range(self.heads):
            q, k, v, d_o = (x[0, h].double() for x in (self.q, self.k, self.v, self.d_o))
            scores = q @ k.T / math.sqrt(self.head_dim)
            if self.causal:
                scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -math.inf)
            p = torch.softmax(scores, -1)
            o = p @ v
            ds = p * (d_o @ v.T - (d_o * o).sum(-1, keepdim=True)) / math.sqrt(self.head_dim)
            for name, x in zip(found, (o, ds @ k, ds.T @ q, p.T @ d_o)):
                found[name].append(x)
        return {name: torch.stack(x)[None] for name, x in found.items()}


class Torch:
    """PyTorch on any device: the public function and its autograd."""

    name = "torch"

    def __init__(self, row):
        self.row = row
        self.inputs = [x.detach().clone().requires_grad_() for x in (row.q, row.k, row.v)]
        self.o = functional.scaled_dot_product_attention(*self.inputs, is_causal=row.causal)

    def forward(self):
        with torch.no_grad():
            return {"o": functional.scaled_dot_product_attention(*self.inputs, is_causal=self.row.causal)}

    def backward(self):
        gradients = torch.autograd.grad(self.o, self.inputs, self.row.d_o, retain_graph=True)
        return dict(zip(("dq", "dk", "dv"), gradients))

    def finish(self):
        if self.row.q.is_cuda:
            torch.cuda.synchronize()


class LanewiseCpu:
    """lanewise's CPU backend through the C interface of peers_library.cpp."""

    name = "lanewise"

    def __init__(self, row, library, pool):
        self.library, self.pool = library, pool
        b, h, s, d = row.q.shape
        self.problem = Problem(list(TYPES).index(row.dtype), row.causal, b, s, s, h, h, d)
        bytes_needed = library.lanewise_workspace(pool, ctypes.byref(self.problem))
        if bytes_needed < 0:
            raise SystemExit(f"head_dim {d} is not compiled into the library")
        self.memory = torch.empty(bytes_needed + 128, dtype=torch.uint8)
        self.scratch = (ctypes.c_void_p(-(-self.memory.data_ptr() // 128) * 128), ctypes.c_int64(bytes_needed))
        self.out = {n: torch.empty_like(x) for n, x in (("o", row.q), ("dq", row.q), ("dk", row.k), ("dv", row.v))}
        lse = torch.empty(b, h, s)
        self.kept = (row, lse)  # addresses of these tensors are held below
        q, k, v, d_o, lse = (Tensor.of(x) for x in (row.q, row.k, row.v, row.d_o, lse))
        o, dq, dk, dv = (Tensor.of(self.out[n]) for n in ("o", "dq", "dk", "dv"))
        self.forward_tensors = [ctypes.byref(x) for x in (q, k, v, o, lse)]
        self.backward_tensors = [ctypes.byref(x) for x in (q, k, v, o, lse, d_o, dq, dk, dv)]
        self.forward()

    def call(self, function, tensors):
        error = function(self.pool, ctypes.byref(self.problem), *tensors, *self.scratch)
        if error:
            raise SystemExit(f"lanewise: {error.decode()}")

    def forward(self):
        self.call(self.library.lanewise_forward, self.forward_tensors)
        return {"o": self.out["o"]}

    def backward(self):
        self.call(self.library.lanewise_backward, self.backward_tensors)
        return {n: self.out[n] for n in ("dq", "dk", "dv")}

    def finish(self):
        pass


def load(archive, folder):
    shared = folder / "peers.so"
    subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-Wl,--whole-archive", archive, "-Wl,--no-whole-archive",
                    "-pthread", "-o", shared], check=True)
    library = ctypes.CDLL(str(shared))
    library.lanewise_pool_create.restype = ctypes.c_void_p
    library.lanewise_pool_free.argtypes = [ctypes.c_void_p]
    library.lanewise_workspace.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.lanewise_workspace.restype = ctypes.c_int64
    for function in (library.lanewise_forward, library.lanewise_backward):
        function.restype = ctypes.c_char_p
    library.lanewise_forward.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_int64]
    library.lanewise_backward.argtypes = [ctypes.c_void_p] * 12 + [ctypes.c_int64]
    return library


def backends(device, row, library, pool):
    """The contestants on a device; another device adds its lanewise class here."""
    return {"cpu": lambda: [LanewiseCpu(row, library, pool), Torch(row)]}[device]()


def seconds(backend, direction):
    """On the clock, and of all threads of this process."""
    time.sleep(PAUSE)
    cpu, start = time.process_time(), time.perf_counter()
    getattr(backend, direction)()
    backend.finish()
    return time.perf_counter() - start, time.process_time() - cpu


def measure(row, direction, contestants, exact, repetitions):
    errors = {}
    for c in contestants:  # also the warm-up
        out = getattr(c, direction)()
        errors[c.name] = max(float((out[n].double() - exact[n]).norm() / exact[n].norm()) for n in OUTPUTS[direction])
    times, cpu_times = {c.name: [] for c in contestants}, {c.name: [] for c in contestants}
    for _ in range(repetitions):
        for c in random.sample(contestants, len(contestants)):
            clock, cpu = seconds(c, direction)
            times[c.name].append(clock)
            cpu_times[c.name].append(cpu)
    result = {"name": row.name(direction), "dtype": row.dtype, "direction": direction, "flop": row.flop(direction),
              "errors": errors, "seconds": times, "cpu_seconds": cpu_times}
    ours, theirs = statistics.median(times["lanewise"]), statistics.median(times["torch"])
    result["ratio"] = theirs / ours
    result["cpu_ratio"] = statistics.median(cpu_times["torch"]) / statistics.median(cpu_times["lanewise"])
    spread = (max(times["lanewise"]) - min(times["lanewise"])) / ours
    print(f"{result['name']:38} lanewise {row.flop(direction) / ours / 1e9:6.1f} GFLOP/s, torch "
          f"{row.flop(direction) / theirs / 1e9:6.1f}, ratio {result['ratio']:5.2f} (CPU time {result['cpu_ratio']:5.2f}), spread {spread:4.0%}, "
          f"error {errors['lanewise']:.1e} and {errors['torch']:.1e}", flush=True)
    return result


def summary(rows):
    """One line a bar; true when all hold."""
    good = True
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        for direction in OUTPUTS:
            ratios = [r["ratio"] for r in rows if (r["dtype"], r["direction"]) == (dtype, direction)]
            mean, bar = statistics.geometric_mean(ratios), BARS.get(dtype)
            held = bar is None or mean >= bar
            good &= held
            verdict = "no bar" if bar is None else f"bar {bar} {'PASS' if held else 'FAIL'}"
            cpu = [r["cpu_ratio"] for r in rows if (r["dtype"], r["direction"]) == (dtype, direction)]
            print(f"{dtype:4} {direction:8} geometric mean {mean:.2f}, least {min(ratios):.2f}: {verdict}; by CPU time "
                  f"{statistics.geometric_mean(cpu):.2f}, least {min(cpu):.2f}")
    return good


def processor():
    """The processor's name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def commit():
    root = Path(__file__).resolve().parent
    return subprocess.run(["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def save(options, load_before, rows):
    options.json.write_text(json.dumps({
        "command": " ".join(["bench/peers.py", *sys.argv[1:]]), "commit": commit(), "chip": processor(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "threads": options.threads, "torch": torch.__version__, "load": [load_before, os.getloadavg()[0]],
        "rows": rows}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--library", required=True, type=Path, help="liblanewise_peers.a of the build")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--dtypes", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--hidden", type=int, default=512, help="heads x head_dim")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        library = load(options.library, Path(folder))
        pool = library.lanewise_pool_create(options.threads)
        load_before, rows = os.getloadavg()[0], []
        for dtype in options.dtypes:
            for head_dim in options.head_dims:
                for length in options.lengths:
                    for causal in (False, True):
                        row = Row(dtype, head_dim, length, causal, max(1, options.hidden // head_dim), options.device)
                        contestants, exact = backends(options.device, row, library, pool), row.exact()
                        rows += [measure(row, d, contestants, exact, options.repetitions) for d in OUTPUTS]
                        if options.json:  # after every shape, so that a run that is cut short leaves what it measured
                            save(options, load_before, rows)
        library.lanewise_pool_free(pool)
    return 0 if summary(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

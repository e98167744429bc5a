#!/usr/bin/env python3
"""lanewise beside PyTorch's flash attention on a GPU, bf16 forward and deterministic backward, in one process.

  nvcc -std=c++20 -O3 -gencode=arch=compute_90,code=sm_90 -Iinclude -shared -Xcompiler -fPIC \\
    bench/cuda_peers_library.cu -o cuda_peers.so
  bench/cuda_peers.py cuda_peers.so [--json OUT] [--commit NAME]

needs torch. Every row has 16384 tokens and heads x head_dim = 2048. Both read the same tensors, [batch, sequence, heads,
head_dim] in memory. Runs alternate within every repetition, in an order drawn anew each time, each between two events and
behind enough device work for the host to stay ahead; the figure is the median. torch.use_deterministic_algorithms is on,
as lanewise's backward is deterministic. The error is the relative Frobenius distance from attention in f64, over one head.
"""
import argparse
import ctypes
import datetime
import json
import math
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products ask for it before they start
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS, HIDDEN = 16384, 2048
OUTPUTS = {"forward": ("o",), "backward": ("dq", "dk", "dv")}


class Problem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "sequence", "heads", "head_dim", "causal")]


class Row:
    """The tensors of one shape, the same for both."""

    def __init__(self, head_dim, length, causal):
        self.head_dim, self.length, self.causal = head_dim, length, causal
        self.batch, self.heads = TOKENS // length, HIDDEN // head_dim
        draw = torch.Generator("cuda").manual_seed(head_dim * length)
        shape = (self.batch, length, self.heads, head_dim)
        self.q, self.k, self.v, self.d_o = (
            torch.randn(shape, generator=draw, device="cuda").bfloat16() for _ in range(4))

    def name(self, direction):
        return f"{direction}/bf16/d{self.head_dim}/{'causal' if self.causal else 'full'}/b{self.batch}/h{self.heads}/s{self.length}"

    def flop(self, direction):
        live = (self.length + 1) / (2 * self.length) if self.causal else 1
        forward = 4 * self.batch * self.heads * self.length**2 * self.head_dim * live
        return forward if direction == "forward" else 2.5 * forward

    def exact(self):
        """o, dq, dk, dv of the last head of the last batch element, in f64."""
        q, k, v, d_o = (x[-1, :, -1].double() for x in (self.q, self.k, self.v, self.d_o))
        scores = q @ k.T / math.sqrt(self.head_dim)
        if self.causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -math.inf)
        p = torch.softmax(scores, -1)
        o = p @ v
        ds = p * (d_o @ v.T - (d_o * o).sum(-1, keepdim=True)) / math.sqrt(self.head_dim)
        return dict(o=o, dq=ds @ k, dk=ds.T @ q, dv=p.T @ d_o)


class Torch:
    name = "torch flash"

    def __init__(self, row):
        self.row = row
        self.inputs = [x.detach().transpose(1, 2).requires_grad_() for x in (row.q, row.k, row.v)]
        self.d_o = row.d_o.transpose(1, 2)
        self.o = self.attention()

    def attention(self):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(*self.inputs, is_causal=self.row.causal)

    def forward(self):
        with torch.no_grad():
            return {"o": self.attention().transpose(1, 2)}

    def backward(self):
        gradients = torch.autograd.grad(self.o, self.inputs, self.d_o, retain_graph=True)
        return {n: x.transpose(1, 2) for n, x in zip(OUTPUTS["backward"], gradients)}


class Lanewise:
    name = "lanewise"

    def __init__(self, row, library):
        self.library = library
        self.problem = Problem(row.batch, row.length, row.heads, row.head_dim, row.causal)
        self.scratch = torch.empty(library.lanewise_cuda_workspace(ctypes.byref(self.problem)), dtype=torch.uint8, device="cuda")
        self.out = {n: torch.full_like(row.q, math.nan) for n in ("o", "dq", "dk", "dv")}
        self.lse = torch.empty(row.batch, row.length, row.heads, device="cuda")
        inputs = [row.q, row.k, row.v, self.out["o"], self.lse]
        self.forward_arguments = [x.data_ptr() for x in inputs]
        self.backward_arguments = [x.data_ptr() for x in inputs + [row.d_o] + [self.out[n] for n in OUTPUTS["backward"]]]
        self.backward_arguments += [self.scratch.data_ptr(), self.scratch.numel()]
        self.forward()

    def call(self, function, arguments):
        error = function(ctypes.byref(self.problem), *arguments, torch.cuda.current_stream().cuda_stream)
        if error:
            raise SystemExit(f"lanewise: {error.decode()}")

    def forward(self):
        self.call(self.library.lanewise_cuda_forward, self.forward_arguments)
        return {"o": self.out["o"]}

    def backward(self):
        self.call(self.library.lanewise_cuda_backward, self.backward_arguments)
        return {n: self.out[n] for n in OUTPUTS["backward"]}


def load(path):
    library = ctypes.CDLL(str(path.resolve()))
    pointers = lambda n: [ctypes.c_void_p] * n
    library.lanewise_cuda_workspace.argtypes = pointers(1)
    library.lanewise_cuda_workspace.restype = ctypes.c_int64
    library.lanewise_cuda_forward.argtypes = pointers(7)
    library.lanewise_cuda_backward.argtypes = pointers(11) + [ctypes.c_int64, ctypes.c_void_p]
    library.lanewise_cuda_forward.restype = library.lanewise_cuda_backward.restype = ctypes.c_char_p
    return library


def milliseconds(run):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def measure(row, direction, contestants, exact, repetitions):
    errors = {}
    for c in contestants:  # also the warm-up
        for _ in range(2):
            out = getattr(c, direction)()
        errors[c.name] = max(float((out[n][-1, :, -1].double() - exact[n]).norm() / exact[n].norm()) for n in OUTPUTS[direction])
    times = {c.name: [] for c in contestants}
    for _ in range(repetitions):
        for c in random.sample(contestants, len(contestants)):
            times[c.name].append(milliseconds(getattr(c, direction)))
    ours, theirs = (statistics.median(times[c.name]) for c in contestants)
    rate = lambda ms: row.flop(direction) / ms / 1e9
    print(f"{row.name(direction):36} lanewise {ours:7.3f} ms {rate(ours):4.0f} TFLOP/s, torch flash {theirs:7.3f} ms "
          f"{rate(theirs):4.0f}, ratio {theirs / ours:.2f}, error {errors['lanewise']:.1e} and {errors['torch flash']:.1e}", flush=True)
    return {"name": row.name(direction), "direction": direction, "flop": row.flop(direction), "errors": errors,
            "milliseconds": times, "ratio": theirs / ours}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--head-dims", nargs="+", type=int, choices=[64, 128, 256], default=[64, 128, 256])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--commit", default="", help="name of the sources that the library was built from")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # would be charged to PyTorch's time
    library, rows = load(options.library), []
    for head_dim in options.head_dims:
        for length in options.lengths:
            for causal in (False, True):
                row = Row(head_dim, length, causal)
                exact, contestants = row.exact(), [Lanewise(row, library), Torch(row)]
                rows += [measure(row, d, contestants, exact, options.repetitions) for d in OUTPUTS]
    for direction in OUTPUTS:
        ratios = [r["ratio"] for r in rows if r["direction"] == direction]
        print(f"{direction}: the time of torch flash over that of lanewise, geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    if options.json:
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        options.json.write_text(json.dumps({
            "command": " ".join(["bench/cuda_peers.py", *sys.argv[1:]]), "commit": options.commit,
            "chip": torch.cuda.get_device_name(), "driver": driver.stdout.strip(), "torch": torch.__version__,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""lanewise beside PyTorch's attention, forward and backward, in one process.

  peers.py --device cpu --library BUILD/bench/liblanewise_peers.a [--json OUT]
  peers.py --device cuda --library BUILD/bench/liblanewise_peers_cuda.a [--json OUT]

Both read the same tensors: [batch, heads, sequence, head_dim] in memory on the CPU, PyTorch's own order, [batch, sequence,
heads, head_dim] on a GPU, as trainers lay them out. Runs alternate within every repetition, in an order drawn anew each
time; the figure is the median. Errors are relative Frobenius distances from attention in f64 on the same inputs.

On the CPU both have the same number of threads. Beside the ratio of times on the clock stands the ratio of CPU times of
all threads, which other programs on the machine disturb less; PyTorch's threads spin while they wait, and on a busy
machine that counts as its CPU time. With --threads 1 nothing spins.

On a GPU a time lies between two events, behind a fill of twice the L2 cache. The rows are a grid of 16,384 tokens of 2048
numbers and the training shapes of shapes.json, in each precision that has an instance; --rows keeps those whose name
matches a pattern, --against names the contestants (FlexAttention compiles for seconds a row and is on windows only unless
named). --beside NAME=LIBRARY adds another build of lanewise, to compare two forms of a kernel in one run. A contestant that
cannot take a row is listed with its reason. Errors are those of one key/value head's group.

needs torch. An archive is linked into a private shared object first, so a rebuild cannot change a running measurement.
"""
import argparse
import ctypes
import datetime
import fnmatch
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

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products ask for it before they start
import torch
from peers_backends import CUDA, GRADIENTS, PRECISIONS, Lanewise, Torch, storage

HERE = Path(__file__).resolve().parent
BARS = {"f32": 1.2, "bf16": 1.0}  # on the CPU: PyTorch's time over lanewise's, forward and backward each
PAUSE = 0.05  # seconds before each timed run: OpenMP's threads spin for milliseconds after theirs, on cores that the other needs
OUTPUTS = {"forward": ("o",), "backward": GRADIENTS}
TOKENS, HIDDEN = 16384, 2048  # of the grid on a GPU
AGAINST = {"f16": ["flash", "flash deterministic", "cudnn", "efficient", "math"],
           "bf16": ["flash", "flash deterministic", "cudnn", "efficient", "math"],
           "bf16_split": ["lanewise bf16", "flash"]}
AGAINST_F32 = ["efficient", "math", "chain tf32"]


class Row:
    """The tensors of one shape, the same for every contestant."""

    def __init__(self, precision, batch, q_heads, kv_heads, q_length, k_length, head_dim, mask, device, label=""):
        self.precision, self.mask, self.label = precision, mask, label
        draw = torch.Generator(device).manual_seed(head_dim * q_length)

        def tensor(heads, length):
            shape = (batch, heads, length, head_dim) if device == "cpu" else (batch, length, heads, head_dim)
            x = torch.randn(shape, generator=draw, device=device).to(storage(precision))
            return x if device == "cpu" else x.transpose(1, 2)

        self.q, self.k, self.v, self.d_o = (
            tensor(*size) for size in ((q_heads, q_length), (kv_heads, k_length), (kv_heads, k_length), (q_heads, q_length)))
        self.batch, self.q_heads, self.kv_heads, self.q_length, self.k_length, self.head_dim = (
            batch, q_heads, kv_heads, q_length, k_length, head_dim)
        self.checked = range(kv_heads) if device == "cpu" else [kv_heads - 1]

    @property
    def live(self):
        """The fraction of pairs that the mask keeps."""
        if self.mask == "full":
            return 1
        width = (math.inf, 0) if self.mask == "causal" else (128, 128)
        pairs = sum(min(i + width[1] + 1, self.k_length) - max(0, i - width[0]) for i in range(self.q_length))
        return pairs / (self.q_length * self.k_length)

    def name(self, direction):
        heads = f"h{self.q_heads}" + (f"x{self.kv_heads}" if self.kv_heads != self.q_heads else "")
        length = f"s{self.q_length}" + (f"x{self.k_length}" if self.k_length != self.q_length else "")
        return "/".join([direction, self.precision, f"d{self.head_dim}", self.mask, f"b{self.batch}", heads, length] +
                        ([self.label] if self.label else []))

    def flop(self, direction):
        forward = 4 * self.batch * self.q_heads * self.q_length * self.k_length * self.head_dim * self.live
        return forward if direction == "forward" else 2.5 * forward

    def exact(self):
        """o, dq, dk, dv of the checked heads of the last batch element in f64, a key/value head and its group at a time."""
        found, group = {n: [] for n in ("o", *GRADIENTS)}, self.q_heads // self.kv_heads
        i, j = (torch.arange(n, device=self.q.device) for n in (self.q_length, self.k_length))
        hidden = {"full": None, "causal": j[None] > i[:, None], "window128": (j[None] - i[:, None]).abs() > 128}[self.mask]
        for h in self.checked:
            k, v = (x[-1, h].double() for x in (self.k, self.v))
            q, d_o = (x[-1, h * group:(h + 1) * group].double() for x in (self.q, self.d_o))
            scores = q @ k.T / math.sqrt(self.head_dim)
            if hidden is not None:
                scores.masked_fill_(hidden, -math.inf)
            p = torch.softmax(scores, -1)
            o = p @ v
            ds = p * (d_o @ v.T - (d_o * o).sum(-1, keepdim=True)) / math.sqrt(self.head_dim)
            for name, x in zip(found, (o, ds @ k, (ds.mT @ q).sum(0, keepdim=True), (p.mT @ d_o).sum(0, keepdim=True))):
                found[name].append(x)
        return {name: torch.cat(x) for name, x in found.items()}

    def checked_part(self, name, x):
        """The part of an output that exact() gives; gradients of expanded heads are folded."""
        x, group = x[-1].double(), self.q_heads // self.kv_heads
        if name in ("o", "dq"):
            return x[self.checked[0] * group:(self.checked[-1] + 1) * group]
        if x.shape[0] != self.kv_heads:
            x = x.view(self.kv_heads, group, *x.shape[1:]).sum(1)
        return x[self.checked[0]:self.checked[-1] + 1]


def load(path, device, folder, name):
    shared = path.resolve()
    if path.suffix == ".a":
        shared = folder / f"{name}.so"
        cuda = Path(os.environ.get("CUDA_PATH", "/usr/local/cuda"))
        libraries = ["-pthread"] if device == "cpu" else [f"-L{cuda}/lib64", "-lcudart_static", "-pthread", "-ldl", "-lrt"]
        subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-Wl,--whole-archive", path, "-Wl,--no-whole-archive",
                        *libraries, "-o", shared], check=True)
    library = ctypes.CDLL(str(shared))
    pointers = [ctypes.c_void_p] * 4
    library.lanewise_workspace.argtypes, library.lanewise_workspace.restype = pointers[:2], ctypes.c_int64
    for function in (library.lanewise_forward, library.lanewise_backward):
        function.argtypes, function.restype = [*pointers, ctypes.c_int64], ctypes.c_char_p
    if device == "cpu":
        library.lanewise_pool_create.restype = ctypes.c_void_p
        library.lanewise_pool_free.argtypes = pointers[:1]
    return library


class CpuTimer:
    def __call__(self, run):
        """On the clock, and of all threads of this process."""
        time.sleep(PAUSE)
        cpu, start = time.process_time(), time.perf_counter()
        run()
        return time.perf_counter() - start, time.process_time() - cpu


class CudaTimer:
    def __init__(self):
        self.cold = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")

    def __call__(self, run):
        """Between events; the sleep lets the host stay ahead."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)
        self.cold.zero_()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3, 0


def measure(row, direction, contestants, exact, repetitions, timer):
    errors = {}
    for name, c in contestants.items():  # also the warm-up
        for _ in range(2):
            out = getattr(c, direction)()
        errors[name] = max(float((row.checked_part(n, out[n]) - exact[n]).norm() / exact[n].norm()) for n in OUTPUTS[direction])
    times, cpu_times = {c: [] for c in contestants}, {c: [] for c in contestants}
    for _ in range(repetitions):
        for name in random.sample(list(contestants), len(contestants)):
            clock, cpu = timer(getattr(contestants[name], direction))
            times[name].append(clock)
            cpu_times[name].append(cpu)
    ours = statistics.median(times["lanewise"])
    result = {"name": row.name(direction), "dtype": row.precision, "direction": direction, "flop": row.flop(direction),
              "live": row.live, "errors": errors, "seconds": times,
              "ratios": {n: statistics.median(t) / ours for n, t in times.items() if n != "lanewise"}}
    text = f"{result['name']:44} lanewise {row.flop(direction) / ours / 1e9:8.1f} GFLOP/s (live {row.live:.3f}, error {errors['lanewise']:.1e})"
    if "torch" in times:
        result["ratio"] = result["ratios"]["torch"]
        result["cpu_seconds"] = cpu_times
        result["cpu_ratio"] = statistics.median(cpu_times["torch"]) / statistics.median(cpu_times["lanewise"])
        text += f", spread {(max(times['lanewise']) - min(times['lanewise'])) / ours:4.0%}, CPU time {result['cpu_ratio']:.2f}x"
    print(text + "".join(f"; {n} {r:.2f}x, {errors[n]:.1e}" for n, r in result["ratios"].items()), flush=True)
    return result


def summary(rows):
    """A line a bar and a contestant; true when all bars hold."""
    good = True
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        for direction in OUTPUTS:
            these = [r for r in rows if (r["dtype"], r["direction"]) == (dtype, direction)]
            for other in dict.fromkeys(n for r in these for n in r["ratios"]):
                ratios = [r["ratios"][other] for r in these if other in r["ratios"]]
                mean, bar = statistics.geometric_mean(ratios), BARS.get(dtype) if other == "torch" else None
                good &= bar is None or mean >= bar
                verdict = "" if bar is None else f": bar {bar} {'PASS' if mean >= bar else 'FAIL'}"
                if other == "torch":
                    verdict += f"; by CPU time {statistics.geometric_mean([r['cpu_ratio'] for r in these]):.2f}"
                print(f"{dtype:10} {direction:8} over {other:20} geometric mean {mean:.2f}, least {min(ratios):.2f} of {len(ratios)} rows{verdict}")
    return good


def chip(device):
    """The processor's name, where the system says it, or the GPU's."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def save(options, load_before, rows, unavailable):
    about = {"command": " ".join(["bench/peers.py", *sys.argv[1:]]),
             "commit": options.commit or output_of("git", "-C", HERE, "rev-parse", "--short", "HEAD"),
             "chip": chip(options.device), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
             "torch": torch.__version__}
    if options.device == "cpu":
        about |= {"threads": options.threads, "load": [load_before, os.getloadavg()[0]]}
    else:
        about |= {"driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"), "unavailable": unavailable}
    options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


def cpu_rows(options):
    for precision in options.precisions or ("f32", "bf16", "f16"):
        for head_dim in options.head_dims or (64, 128):
            for length in options.lengths or (1024, 4096):
                for mask in ("full", "causal"):
                    heads = max(1, options.hidden // head_dim)
                    yield precision, 1, heads, heads, length, length, head_dim, mask


def grid(options, precision):
    for head_dim in options.head_dims or (64, 128, 256):
        for length in options.lengths or (512, 2048, 8192):
            for group in options.groups:
                for mask in ("full", "causal"):
                    heads = HIDDEN // head_dim
                    yield precision, TOKENS // length, heads, heads // group, length, length, head_dim, mask


def training(_, precision):
    for t in json.loads((HERE / "shapes.json").read_text())["training"]:
        mask = "causal" if t["mask"] == "causal" else "window128" if t["mask"].startswith("window") else "full"
        yield (precision, t["batch"], t["q_heads"], t["kv_heads"], t["q_len"], t["k_len"], t["head_dim"], mask, t["id"])


SHAPES = {"grid": grid, "training": training}


def cuda_rows(options):
    for precision in options.precisions or PRECISIONS:
        for shapes in options.shapes:
            yield from SHAPES[shapes](options, precision)


def contestants_of(row, options, library, beside, pool, unavailable):
    """Those that can take the row, lanewise first; none where lanewise is not compiled for it."""
    if options.device == "cpu":
        return {"lanewise": Lanewise(row, library, pool), "torch": Torch(row)}
    found, names = {}, options.against or AGAINST.get(row.precision, AGAINST_F32) + (["flex"] if row.mask == "window128" else [])
    try:
        found["lanewise"] = Lanewise(row, library, None)
    except RuntimeError:
        return {}
    others = {name: lambda row, _, of=other: Lanewise(row, of, None) for name, other in beside.items()}
    for name, make in (others | {name: CUDA[name] for name in names}).items():
        try:
            found[name] = make(row, library)
        except Exception as e:  # whatever PyTorch, Triton or the C++ behind them throw is the reason
            why = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"
            unavailable.setdefault(name, {})[row.name("")[1:]] = why
            print(f"unavailable: {name} on {row.name('')[1:]}: {why}", flush=True)
    return found


def other_build(text):
    """NAME=LIBRARY as (name, path)."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=LIBRARY")
    return name, Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--library", required=True, type=Path, help="the archive of the build, or a shared object made from it")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS)
    parser.add_argument("--head-dims", nargs="+", type=int)
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--groups", nargs="+", type=int, default=[1], help="GPU: query heads of a key/value head, in the grid")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="GPU")
    parser.add_argument("--directions", nargs="+", choices=OUTPUTS, default=list(OUTPUTS))
    parser.add_argument("--hidden", type=int, default=512, help="CPU: heads x head_dim")
    parser.add_argument("--rows", nargs="+", default=["*"], help="GPU: patterns of names without the direction, as in 'bf16/d128/*'")
    parser.add_argument("--against", nargs="+", choices=CUDA, help="GPU: the contestants")
    parser.add_argument("--beside", nargs="+", default=[], type=other_build, metavar="NAME=LIBRARY", help="GPU: other builds of lanewise")
    parser.add_argument("--commit", default="", help="name of the sources that the library was built from, where it is not git's")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.utils.deterministic.fill_uninitialized_memory = False  # would be charged to PyTorch's time
    with tempfile.TemporaryDirectory() as folder:
        library, cpu = load(options.library, options.device, Path(folder), "peers"), options.device == "cpu"
        beside = {name: load(path, options.device, Path(folder), name) for name, path in options.beside}
        pool = library.lanewise_pool_create(options.threads) if cpu else None
        timer, load_before, rows, unavailable = CpuTimer() if cpu else CudaTimer(), os.getloadavg()[0], [], {}
        for shape in (cpu_rows if cpu else cuda_rows)(options):
            row = Row(*shape[:8], options.device, *shape[8:])
            if not any(fnmatch.fnmatch(row.name("")[1:], pattern) for pattern in options.rows):
                continue
            contestants = contestants_of(row, options, library, beside, pool, unavailable)
            if not contestants:
                continue
            exact = row.exact()
            rows += [measure(row, d, contestants, exact, options.repetitions, timer) for d in options.directions]
            if options.json:  # after every shape, so that a run that is cut short leaves what it measured
                save(options, load_before, rows, unavailable)
        if cpu:
            library.lanewise_pool_free(pool)
    return 0 if summary(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

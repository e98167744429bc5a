"""The contestants of peers.py: lanewise behind its C interface, PyTorch's attention, and the chain of matrix products.

A contestant has `forward()` and `backward()`, which run one direction and give its outputs by name, [batch, heads, sequence,
head_dim]. Making one runs it once; a backend that cannot take a row raises RuntimeError with the reason.
"""
import ctypes
import math

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

PRECISIONS = ("f32", "tf32", "f16", "bf16", "bf16_split", "f32_split")  # as lanewise::precision counts
MASKS = ("full", "causal", "window128")
STORAGE = {"f16": torch.float16, "bf16": torch.bfloat16, "bf16_split": torch.bfloat16}
GRADIENTS = ("dq", "dk", "dv")


def storage(precision):
    return STORAGE.get(precision, torch.float32)


class Problem(ctypes.Structure):
    _fields_ = [("precision", ctypes.c_int), ("mask", ctypes.c_int)] + [
        (name, ctypes.c_int64) for name in ("batch", "q_length", "k_length", "q_heads", "kv_heads", "head_dim")]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4)]

    @classmethod
    def of(cls, x):
        """A [batch, heads, sequence, ...] tensor in lanewise's order of dimensions."""
        b, h, s, d = x.stride() if x.dim() == 4 else (*x.stride(), 1)
        return cls(x.data_ptr(), (b, s, h, d))


class Lanewise:
    """`where` is a pool of the library, or None on a GPU: the current stream."""

    def __init__(self, row, library, where, precision=None):
        precision = precision or row.precision
        self.library, self.where = library, where
        b, h, s, d = row.q.shape
        self.problem = Problem(PRECISIONS.index(precision), MASKS.index(row.mask), b, s, row.k.shape[2], h, row.k.shape[1], d)
        needed = library.lanewise_workspace(self.stream(), ctypes.byref(self.problem))
        if needed < 0:
            raise RuntimeError("not compiled into the library")
        self.memory = torch.empty(needed + 128, dtype=torch.uint8, device=row.q.device)
        self.scratch = (ctypes.c_void_p(-(-self.memory.data_ptr() // 128) * 128), ctypes.c_int64(needed))
        wide = torch.float32 if precision == "bf16_split" else row.q.dtype  # of the gradients
        self.out = {"o": torch.full_like(row.q, math.nan)} | {
            n: torch.full_like(x, math.nan, dtype=wide) for n, x in zip(GRADIENTS, (row.q, row.k, row.v))}
        self.lse = torch.empty(b, h, s, device=row.q.device)
        self.row = row  # its tensors' addresses are held below
        tensors = [row.q, row.k, row.v, self.out["o"], self.lse, row.d_o, *(self.out[n] for n in GRADIENTS)]
        self.tensors = (Tensor * len(tensors))(*map(Tensor.of, tensors))
        self.forward()

    def stream(self):
        return self.where if self.where is not None else torch.cuda.current_stream().cuda_stream

    def call(self, function):
        error = function(self.stream(), ctypes.byref(self.problem), self.tensors, *self.scratch)
        if error:
            raise RuntimeError(error.decode())

    def forward(self):
        self.call(self.library.lanewise_forward)
        return {"o": self.out["o"]}

    def backward(self):
        self.call(self.library.lanewise_backward)
        return {n: self.out[n] for n in GRADIENTS}


def visible(row):
    """[Sq, Sk], true where a pair is kept; None for a full row."""
    if row.mask == "full":
        return None
    i = torch.arange(row.q.shape[2], device=row.q.device)[:, None]
    j = torch.arange(row.k.shape[2], device=row.q.device)[None]
    return j <= i if row.mask == "causal" else (i - j).abs() <= 128


class Autograd:
    """A function of q, k, v under autograd."""

    def __init__(self, row):
        self.row = row
        self.inputs = [x.detach().requires_grad_() for x in self.given()]
        self.o = self.attention()

    def given(self):
        return self.row.q, self.row.k, self.row.v

    def forward(self):
        with torch.no_grad():
            return {"o": self.attention()}

    def backward(self):
        return dict(zip(GRADIENTS, torch.autograd.grad(self.o, self.inputs, self.row.d_o, retain_graph=True)))


class Torch(Autograd):
    """scaled_dot_product_attention: one backend of it, or PyTorch's choice."""

    def __init__(self, row, backend=None, deterministic=False):
        self.backend, self.deterministic = backend, deterministic
        self.grouped = row.q.shape[1] != row.k.shape[1]
        self.expands = self.grouped and backend == SDPBackend.EFFICIENT_ATTENTION  # it takes no grouped heads
        self.bias = visible(row) if row.mask == "window128" else None
        if backend == SDPBackend.MATH and (kept := 4 * row.q.shape[0] * row.q.shape[1] * row.q.shape[2] * row.k.shape[2]) > 16e9:
            raise RuntimeError(f"it would keep {kept / 1e9:.0f} GB of softmax")
        super().__init__(row)

    def given(self):
        q, k, v = super().given()
        if self.expands:  # beforehand: neither the copies nor the sums of their gradients are timed
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        return q, k, v

    def attention(self):
        options = dict(is_causal=self.row.mask == "causal", attn_mask=self.bias)
        if self.grouped and not self.expands:
            options["enable_gqa"] = True
        if self.backend is None:
            return functional.scaled_dot_product_attention(*self.inputs, **options)
        with sdpa_kernel(self.backend):
            return functional.scaled_dot_product_attention(*self.inputs, **options)

    def backward(self):
        torch.use_deterministic_algorithms(self.deterministic)
        out = super().backward()
        torch.use_deterministic_algorithms(False)
        return out


class Flex(Autograd):
    """FlexAttention with a block mask, compiled."""

    compiled = None

    def __init__(self, row):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        torch._functorch.config.donated_buffer = False  # a backward that runs again keeps its inputs
        Flex.compiled = Flex.compiled or torch.compile(flex_attention)
        keep = {"full": None, "causal": lambda b, h, q, k: k <= q, "window128": lambda b, h, q, k: (q - k).abs() <= 128}[row.mask]
        self.block_mask = keep and create_block_mask(keep, None, None, row.q.shape[2], row.k.shape[2], device="cuda")
        super().__init__(row)

    def attention(self):
        return Flex.compiled(*self.inputs, block_mask=self.block_mask, enable_gqa=self.row.q.shape[1] != self.row.k.shape[1])


class Chain:
    """What flash attention replaces, on cuBLAS with TF32 allowed: S = Q K^T in memory, softmax, P V; P is kept for the
    backward. The query heads of a group are stacked along the sequence, so that keys are not expanded."""

    def __init__(self, row):
        self.row, (b, h, s, d) = row, row.q.shape
        kv, self.n = row.k.shape[1], row.k.shape[2]
        if (kept := 4 * b * h * s * self.n) > 16e9:
            raise RuntimeError(f"it would keep {kept / 1e9:.0f} GB of softmax")
        self.stacked, self.scale = (b, kv, h // kv * s, d), 1 / math.sqrt(d)
        self.hidden = None if (mask := visible(row)) is None else ~mask.repeat(h // kv, 1)
        self.q, self.d_o = (x.reshape(self.stacked) for x in (row.q, row.d_o))
        self.forward()

    def forward(self):
        torch.backends.cuda.matmul.allow_tf32 = True
        scores = torch.matmul(self.q, self.row.k.transpose(-1, -2)).mul_(self.scale)
        if self.hidden is not None:
            scores.masked_fill_(self.hidden, -math.inf)
        self.p = torch.softmax(scores, -1)
        o = torch.matmul(self.p, self.row.v)
        torch.backends.cuda.matmul.allow_tf32 = False
        return {"o": o.view(self.row.q.shape)}

    def backward(self):
        torch.backends.cuda.matmul.allow_tf32 = True
        dv = torch.matmul(self.p.transpose(-1, -2), self.d_o)
        dp = torch.matmul(self.d_o, self.row.v.transpose(-1, -2))
        ds = torch.ops.aten._softmax_backward_data(dp, self.p, -1, dp.dtype).mul_(self.scale)
        dq, dk = torch.matmul(ds, self.row.k), torch.matmul(ds.transpose(-1, -2), self.q)
        torch.backends.cuda.matmul.allow_tf32 = False
        return {"dq": dq.view(self.row.q.shape), "dk": dk, "dv": dv}


# Name -> maker of a contestant on a GPU. lanewise itself is always there.
CUDA = {
    "flash": lambda row, library: Torch(row, SDPBackend.FLASH_ATTENTION),
    "flash deterministic": lambda row, library: Torch(row, SDPBackend.FLASH_ATTENTION, deterministic=True),
    "cudnn": lambda row, library: Torch(row, SDPBackend.CUDNN_ATTENTION),
    "efficient": lambda row, library: Torch(row, SDPBackend.EFFICIENT_ATTENTION),
    "math": lambda row, library: Torch(row, SDPBackend.MATH),
    "flex": lambda row, library: Flex(row),
    "chain tf32": lambda row, library: Chain(row),
    "lanewise bf16": lambda row, library: Lanewise(row, library, None, "bf16"),
}

#!/usr/bin/env python3
"""Do PEFT and LyCORIS read what lanewise-train exports, and compute the same with it?

    python3 check_peft.py build/examples/trainer/lanewise-train

Trains a small base, then an adapter of each kind on it; loads each in PEFT, merges it, and compares the merged model's
loss on the validation text with the one that lanewise-train wrote into summary.json. LoKR is loaded in LyCORIS as well.
Needs torch, transformers, peft and lycoris-lora.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import peft
import torch
import transformers
from lycoris import create_lycoris_from_weights

CONTEXT, SHARE = 64, 0.25
ADAPTERS = {
    "LoRA r 4": "--adapter lora --rank 4",
    "LoRA r 4 alpha 10, q and down": "--adapter lora --rank 4 --alpha 10 --sites q,down",
    "LoKR whole w2": "--adapter lokr --dim 64 --factor 4",
    "LoKR factorised w2, alpha 6": "--adapter lokr --dim 3 --alpha 6 --factor 4",
    "LoKR mixed, alpha 20": "--adapter lokr --dim 10 --alpha 20 --factor 4",
}


def train(out, options):
    command = [sys.argv[1], "lm", "--preset", "tiny", "--data", "text", "--validation", str(SHARE), "--context",
               str(CONTEXT), "--sample-bytes", "0", "--overwrite", "--out", out] + options.split()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(pathlib.Path(out, "summary.json").read_text())["validation_loss"]


@torch.no_grad()
def loss(model, text):
    """Of windows that start anew, as lanewise-train validates; in f64 sums."""
    kept = math.ceil(len(text) * (1 - SHARE))
    stream = torch.tensor([0, *text[kept:], 0])
    total = 0.0
    for begin in range(0, len(stream) - 1, CONTEXT):
        window = stream[begin:begin + CONTEXT + 1]
        logits = model(input_ids=window[None, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits.double(), window[1:], reduction="sum").item()
    return total / (len(stream) - 1)


def base():
    return transformers.Qwen3ForCausalLM.from_pretrained("base", dtype=torch.float32)


with tempfile.TemporaryDirectory() as folder:
    sys.argv[1] = str(pathlib.Path(sys.argv[1]).resolve())
    os.chdir(folder)
    text = " ".join(str(i * 7919 % 10007) for i in range(4000)).encode()
    pathlib.Path("text").write_bytes(text)
    ours = train("base", "--steps 60")
    worst = abs(loss(base(), text) - ours)
    print(f"{'base':32} ours {ours:.7f}  transformers differs by {worst:.1e}")
    plain = loss(base(), text)
    for name, options in ADAPTERS.items():
        ours = train("adapter", "--base base --steps 40 --lr 0.01 " + options)
        model = peft.PeftModel.from_pretrained(base(), "adapter")
        differences = {"PEFT": loss(model, text) - ours, "PEFT, merged": loss(model.merge_and_unload(), text) - ours}
        if "lokr" in options:
            model = base()
            network, _ = create_lycoris_from_weights(1.0, "adapter/lycoris.safetensors", model)
            network.apply_to()
            differences["LyCORIS"] = loss(model, text) - ours
        print(f"{name:32} ours {ours:.7f}, {plain - ours:.3f} below the base; differs by "
              + ", ".join(f"{abs(d):.1e} ({who})" for who, d in differences.items()))
        worst = max(worst, *map(abs, differences.values()))
print(f"largest difference {worst:.1e}: torch {torch.__version__}, transformers {transformers.__version__}, "
      f"peft {peft.__version__}")
sys.exit(worst > 1e-5)

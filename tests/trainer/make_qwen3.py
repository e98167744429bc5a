#!/usr/bin/env python3
"""Writes data/qwen3_tied and data/qwen3_untied: tiny random Qwen3 models as transformers saves them, and in
reference.safetensors beside them a batch of tokens with transformers' loss and gradients; and data/peft_lora and
data/peft_lokr: random adapters of qwen3_tied as PEFT saves them, with PEFT's. qwen3_test and adapter_files_test compare.

    python3 make_qwen3.py data

qwen3_tied is stored in bf16, in one file, with its embedding as the head; qwen3_untied in f32, in shards, with a head of
its own. Neither has the default rope_theta or rms_norm_eps. The gradients are those of the mean loss over the tokens
that have a target, computed in f32 by the eager attention. What made the committed files is in data/README.md.
"""
import hashlib
import json
import pathlib
import sys

import peft
import safetensors.torch
import torch
import transformers


def make(folder, seed, dtype, shard, **config):
    torch.manual_seed(seed)
    shape = dict(vocab_size=120, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=32, max_position_embeddings=64, eos_token_id=0, bos_token_id=None)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**{**shape, **config}))
    with torch.no_grad():  # every number one that bf16 has, and large enough that no derivative is small
        for name, p in model.named_parameters():
            p.copy_((torch.randn_like(p) * 0.2 + (1 if "norm" in name else 0)).bfloat16())
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)

    # Read back, since a model moved through bf16 keeps rotary frequencies rounded to it.
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    write_reference(model, folder)


def write_reference(model, folder):
    tokens = torch.randint(0, 120, (2, 21))
    labels = tokens.clone()
    labels[0, 5:9] = -100  # not predicted
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    targets = torch.cat([labels[:, 1:], torch.full((2, 1), -100)], 1)
    tensors = {"gradient." + n.replace(".default", ""): p.grad.contiguous()
               for n, p in model.named_parameters() if p.requires_grad}
    tensors |= {"tokens": tokens.int(), "targets": torch.where(targets < 0, -1, targets).int(),
                "loss": loss.detach().reshape(1)}
    safetensors.torch.save_file(tensors, folder / "reference.safetensors")


def adapt(folder, base, seed, config):
    torch.manual_seed(seed)
    model = transformers.Qwen3ForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.copy_((torch.randn_like(p) * 0.2).bfloat16())
    model.save_pretrained(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = base.name
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "README.md").unlink(missing_ok=True)
    write_reference(model, folder)


root = pathlib.Path(sys.argv[1])
make(root / "qwen3_tied", 1, torch.bfloat16, "1GB", tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=500.0)
make(root / "qwen3_untied", 2, torch.float32, "60KB", tie_word_embeddings=False, rms_norm_eps=1e-3, rope_theta=1e6,
     num_hidden_layers=1)
adapt(root / "peft_lora", root / "qwen3_tied", 3, peft.LoraConfig(
    r=3, lora_alpha=5, task_type="CAUSAL_LM", target_modules=["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"]))
adapt(root / "peft_lokr", root / "qwen3_tied", 4, peft.LoKrConfig(
    r=6, alpha=6, decompose_factor=4, task_type="CAUSAL_LM",
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}")
for file in sorted(root.glob("*_*/*.safetensors")):
    print(hashlib.sha256(file.read_bytes()).hexdigest(), file.relative_to(root), file.stat().st_size)

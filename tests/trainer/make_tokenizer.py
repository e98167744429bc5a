#!/usr/bin/env python3
"""Writes data/tokenizer/tokenizer.json, a small tokenizer of Qwen's kind, and expected.json: texts and the ids that
Hugging Face's tokenizers gives them. tokenizer_test compares.

    python3 make_tokenizer.py data/tokenizer [RANDOM_TEXTS]

RANDOM_TEXTS (default 30) are strings of letters, digits, spaces, symbols and characters of many scripts that NFC leaves
alone. What made the committed files is in data/README.md.
"""
import json
import pathlib
import random
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "\n", "a", "Hello, world!", "I'm she'll they'Ve don't IT'S we'RE 'd'T 'x", "it\u2019s \u017f'\u017f",
    "tabs\tand  two spaces   three\n\n  indented\r\nwindows\r\n\r\n", "trailing spaces   ", "\n \n  \n a\n",
    "1234567 3.14e-10 x1y2z3 \u0663\u0664 \u00bd \u2167", "(a+b)*c==d; // ok?\n", "   --- !!!\n\n\n???", "under_score__x",
    "na\u00efve caf\u00e9 \u00dcber stra\u00dfe", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\U0001f600\U0001f3fd\u200d\U0001f680 emoji", "\u3000ideographic\u00a0space\u2003em", "\ud55c\uad6d\uc5b4", "\u0905\u0928\u094d",
    "<|endoftext|>", "one<|endoftext|>two<|im_start|>user\nhi<|im_end|>", "<|endoftext", "<<|endoftext|>|endoftext|>",
    "<|end|><|endoftext|><|end", "the of and to in that is was he for it with as his on be at by I this had not are",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 3, "ab" * 40, "\x7f\x01\x02",
]

CORPUS = """It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a
wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth
is so well fixed in the minds of the surrounding families, that he is considered as the rightful property of some one or
other of their daughters. "My dear Mr. Bennet," said his lady to him one day, "have you heard that Netherfield Park is
let at last?" Mr. Bennet replied that he had not. "But it is," returned she; "for Mrs. Long has just been here, and she
told me all about it." aaaa aaaa aaaaaaaa abab ababab int main(int argc, char** argv) { return 0; } // 2026-12-02 == != ++
    for (int i = 0; i < 10; ++i) {\n        x[i] += y[i];\n    }\n\n caf\u00e9 na\u00efve \u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d \u4e16\u754c"""


def random_text(draw):
    pools = ["abcdefgXYZ", "0123456789", "   \t\n\r", ".,;:!?'\"()[]{}<|>-_=+*/\\&%$#@~^", "\u00e9\u00fc\u00df\u0101\u0416\u0436\u05d0\u0639\u4e2d\u3042\ud55c\U0001f600\u2603\u00bd\u2167\u0663\u00a0\u3000\u2028\u0085"]
    words = ["'s", "'LL", "<|endoftext|>", "<|end|>", "the", " of", "\r\n", "    ", "\u1f00"]
    text = "".join(draw.choice(words) if draw.random() < 0.15 else draw.choice(draw.choice(pools))
                   for _ in range(draw.randrange(1, 60)))
    if draw.random() < 0.3:
        text += "".join(chr(draw.randrange(0x20, 0x30000)) for _ in range(6))
    # Unassigned characters differ between versions of Unicode; marks and Hangul jamo are what NFC composes.
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cs", "Cn", "Mn", "Mc", "Me")
                   and not "\u1100" <= c <= "\u11ff")
    return text if unicodedata.normalize("NFC", text) == text else random_text(draw)


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
t = Tokenizer(models.BPE(byte_fallback=False))
t.normalizer = normalizers.NFC()
t.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(PATTERN), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
t.decoder = decoders.ByteLevel()
t.train_from_iterator([CORPUS], trainers.BpeTrainer(
    vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
t.add_special_tokens([AddedToken(x, special=True, normalized=False)
                      for x in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>")])
t.save(str(folder / "tokenizer.json"))

draw = random.Random(1)
texts = TEXTS + [random_text(draw) for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 30)]
expected = [{"text": x, "ids": t.encode(x, add_special_tokens=False).ids} for x in texts]
(folder / "expected.json").write_text(json.dumps(expected, separators=(",", ":")).replace("},{", "},\n{") + "\n")
print(f"tokenizers {tokenizers.__version__}, unicodedata {unicodedata.unidata_version}, {len(texts)} texts")

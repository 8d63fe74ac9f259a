# SPDX-License-Identifier: MIT
"""Measures what the forms of TurboQuant, and Quire's r codecs, cost at the same bits: KL divergence on a real model in mlx-lm.

    python/tests/mlx/run.py eval/turboquant.py [--contexts 4] [--forms NAME,...] [--write docs/bench/turboquant.jsonl] FOLDER

FOLDER is a model for mlx-lm; @model stands for scripts/make-mlx-model. Every row of K and V is encoded and decoded before attention, which
MLX then computes in float32: so every form has the same attention, and only the codes differ. Queries of the second half of each context
of 2,048 tokens of eval/text/wiki.txt count.

    paper-mse4     TurboQuant_mse as the paper defines it: a random rotation (QR of a normal matrix), Lloyd-Max levels of the Beta density,
                   the norm of the row in float16; for K and V
    paper-prod4    TurboQuant_prod for K: one bit less of the above, and one bit of the residual's random projection (QJL) with its norm in
                   float16; V as in paper-mse4. Attention's scores with such a K are scores with the row that decode() gives
    r4, tq4, tv4   Quire's codecs by name
"""
import argparse
import json
import sys
import time
from functools import lru_cache
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm import load
from mlx_lm.models.cache import KVCache, make_prompt_cache

import quire

HERE = Path(__file__).resolve().parent
CONTEXT = 2048
FORMS = [f"{form}{bits}" for bits in (4, 3, 2) for form in ("paper-mse", "paper-prod", "tv", "tq", "r")]


@lru_cache(None)
def levels(d, bits):
    """Lloyd-Max levels of a coordinate of a random unit vector of d dimensions."""
    x = np.linspace(-1, 1, 200001)
    weight = np.exp((d - 3) / 2 * np.log(np.maximum(1 - x * x, 1e-300)))
    weight /= weight.sum()
    found = np.interp((np.arange(1 << bits) + 0.5) / (1 << bits), weight.cumsum(), x)
    for _ in range(2000):
        cell = np.searchsorted((found[1:] + found[:-1]) / 2, x)
        found = np.bincount(cell, weight * x) / np.bincount(cell, weight)
    return found


@lru_cache(None)
def matrix(d, seed):
    return np.random.default_rng(seed).standard_normal((d, d))


@lru_cache(None)
def rotation(d, seed):
    q, r = np.linalg.qr(matrix(d, seed))
    return (q * np.sign(np.diag(r))).astype(np.float32)


def half(x):
    return x.astype(np.float16).astype(np.float32)


def unit_code(unit, bits, seed):
    """Unit vectors as TurboQuant_mse gives them back."""
    d = unit.shape[-1]
    table = levels(d, bits)
    rotated = unit @ rotation(d, seed).T
    return table[np.searchsorted((table[1:] + table[:-1]) / 2, rotated)].astype(np.float32) @ rotation(d, seed)


def paper(x, bits, side, product):
    d, seed = x.shape[-1], "kv".index(side)
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    unit = x / np.maximum(norm, 1e-30)
    if not product:
        return half(norm) * unit_code(unit, bits, seed)
    coarse = unit_code(unit, bits - 1, seed)
    rest = unit - coarse
    projection = matrix(d, 1000 + seed).astype(np.float32)
    signs = np.where(rest @ projection.T >= 0, 1, -1).astype(np.float32)
    length = half(np.linalg.norm(rest, axis=-1, keepdims=True))
    return half(norm) * (coarse + np.float32(np.sqrt(np.pi / 2) / d) * length * (signs @ projection))


def decoded(form, x, side):
    name, bits = form[:-1], int(form[-1])
    if name.startswith("paper"):
        return paper(x, bits, side, name == "paper-prod" and side == "k")
    return quire.round_trip(form, x, side=side)


def bits_of(form, d):
    """Per value, of K and V together."""
    name, bits = form[:-1], int(form[-1])
    if name == "paper-mse":
        return bits + 16 / d
    return bits + 24 / d if name == "paper-prod" else quire.bits(form, d)


class Coded(KVCache):
    """mlx-lm's own cache, with rows that went through a codec."""

    form = ""

    def update_and_fetch(self, keys, values):
        mx.eval(keys, values)
        sides = [mx.array(decoded(self.form, np.array(x.astype(mx.float32)), side)) for x, side in ((keys, "k"), (values, "v"))]
        return super().update_and_fetch(*sides)


def log_probabilities(model, tokens, form):
    caches = make_prompt_cache(model)
    if form:
        caches = [Coded() if type(c) is KVCache else c for c in caches]
        for c in caches:
            c.form = form
    out = model(mx.array([tokens]), cache=caches)[0, CONTEXT // 2:-1].astype(mx.float32)
    out = out - mx.logsumexp(out, axis=-1, keepdims=True)
    mx.eval(out)
    return out


def keep(path, lines):
    """Adds results to a file; a form that is measured again is replaced."""
    old = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = {(row["model"], row["form"]): row for row in [*old, *lines]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--contexts", type=int, default=4)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    model, tokenizer = load(args.folder)
    d = model.args.head_dim or model.args.hidden_size // model.args.num_attention_heads
    text = tokenizer.encode((HERE / "text" / "wiki.txt").read_text())
    pieces = [text[i * CONTEXT:(i + 1) * CONTEXT] for i in range(args.contexts)]
    if len(pieces[-1]) < CONTEXT:
        sys.exit(f"the text has fewer than {args.contexts} contexts of {CONTEXT} tokens")
    forms = args.forms.split(",")
    found, seconds = {form: [] for form in forms}, dict.fromkeys(forms, 0.0)
    for piece in pieces:
        base = log_probabilities(model, piece, None)
        for form in forms:
            begin = time.monotonic()
            other = log_probabilities(model, piece, form)
            kl = (mx.exp(base) * (base - other)).sum(axis=-1)
            same = mx.argmax(base, axis=-1) == mx.argmax(other, axis=-1)
            found[form].append((np.array(kl), np.array(same)))
            seconds[form] += time.monotonic() - begin
    lines = []
    for form in forms:
        kl, same = (np.concatenate(x) for x in zip(*found[form]))
        lines.append({"form": form, "model": Path(args.folder).name, "bits": round(bits_of(form, d), 4), "contexts": args.contexts,
                      "kl": float(f"{kl.mean():.4g}"), "kl_error": float(f"{kl.std() / len(kl) ** 0.5:.2g}"),
                      "same_token": round(100 * float(same.mean()), 2), "seconds": round(seconds[form], 1)})
        print(json.dumps(lines[-1]))
    if args.write:
        keep(args.write, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A profile recorded from one part of the text and used on another: c:r4/r4 against stock q4_0, both to the f16 cache;
and a profile of window layers, whose cells are reused while it is recorded."""
import math
import statistics
import struct

import kit
from kit import expect, note, part

MODELS = {"smollm2-135m": (1024, 4), "gemma3-270m": (1024, 2)}


def record(path, profile, ctx, chunks, *args, **env):
    learn = kit.folder() / "learn.txt"
    learn.write_text(kit.text(100000))
    kit.run("llama-perplexity", ["-m", path, "-f", learn, "-c", ctx, "--chunks", chunks, "-t", kit.threads, *args],
            env={"QUIRE_PROFILE_RECORD": str(profile), **env})


def compare(name):
    ctx, chunks = (512, 2) if kit.quick else MODELS[name]
    path = kit.model(name)
    profile, base = kit.folder() / f"{name}.profile", kit.folder() / f"{name}.logits"
    record(path, profile, ctx, 3)
    expect(profile.exists(), f"{name}: a profile is recorded")
    # f16 on each side is its own base: what is compared is the cache, not the attention code.
    figures = {}
    for label, plugin, types, env in (("stock q4_0", False, "q4_0", None),
                                      ("c:r4/r4", True, "f16", {"QUIRE_KV": "c:r4/r4", "QUIRE_PROFILE": str(profile)}),
                                      ("r4", True, "f16", {"QUIRE_KV": "r4"})):
        if label != "r4":
            kit.perplexity(path, ["-fa", "on"], plugin=plugin, ctx=ctx, chunks=chunks, save=base)
        figures[label] = kit.perplexity(path, ["-fa", "on", "-ctk", types, "-ctv", types], plugin=plugin, env=env,
                                        ctx=ctx, chunks=chunks, base=base)
        f = figures[label]
        note(f"{name}, {label}: mean KL {f['kld']:.5f} +/- {f['kld_error']:.5f}, 99 % {f['kld99']:.4f}, "
             f"top-1 {f['top1']:.1f} %, PPL ratio {f['ratio']:.4f}")
    expect(figures["c:r4/r4"]["kld"] < 0.5 * figures["stock q4_0"]["kld"],
           f"{name}: c:r4/r4 has less than half of the KL of stock q4_0")
    base.unlink()


def weights(profile):
    """The weights of K's channels by layer; docs/formats/profile.md."""
    data, at, layers = profile.read_bytes(), 16, []
    for _ in range(struct.unpack_from("<I", data, 12)[0]):
        n_heads, d, n_means = struct.unpack_from("<3I", data, at)
        block = (n_means + 2) * d
        values = struct.unpack_from(f"<{n_heads * block}f", data, at + 12)
        layers.append([w for h in range(n_heads) for w in values[h * block + n_means * d:][:d]])
        at += 12 + 4 * n_heads * block
    return layers


def windows(name="gemma3-270m"):
    """Batches so large that no cell of a window layer is reused, and so small that all are, several times."""
    path, ctx, found = kit.model(name), 1024, []
    for batch in (ctx, 128):
        profile = kit.folder() / f"{name}.{batch}.profile"
        record(path, profile, ctx, 1, "-b", ctx, "-ub", batch, "--no-warmup", QUIRE_PROFILE_LENGTH="8192")
        found.append(weights(profile))
    # Of the first layers, which have windows: from the fourth on, a few channels amplify what other orders of cells round otherwise.
    apart = [math.sqrt(statistics.mean(math.log(x / y) ** 2 for x, y in zip(*layer))) for layer in zip(*found)][:3]
    expect(max(apart) < 0.002, f"{name}: a profile of window layers does not depend on how cells are reused",
           " ".join(f"{x:.4f}" for x in apart))


def run():
    part(windows)
    for name in list(MODELS)[:1] if kit.quick else MODELS:
        part(compare, name)


kit.main(run)

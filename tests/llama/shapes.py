#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Models that read a cache in other ways than layer by layer: layers that share one (Gemma 4), rows that an indexer
selects (DeepSeek-V3.2). Made models with the shapes of the real ones: their attention is the device's, and they say what stock
says. And weights stay where they are without the device: as files in memory, or repacked.
"""
import math
import re
import subprocess

import kit
from kit import expect, note, part

PROMPT = kit.text(3000, 700)  # longer than the window of 512 tokens, and than the 64 selected ones


def made(name):
    path = kit.folder() / f"{name}.gguf"
    if not path.exists():
        subprocess.run([str(kit.ROOT / "scripts/make-model-like"), name, str(path), "--small", "--type", "f32"], check=True)
    return str(path)


def debian():
    """Directory of the programs of a newer host, or None."""
    done = subprocess.run([str(kit.ROOT / "scripts/get-llama"), "--debian"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        note("get-llama --debian: not here")
        return None
    return done.stdout.strip().split("\n")[-1]


def splits(log):
    """Parts into which the last graph was cut; those of the device lie between others of the CPU."""
    return int(re.findall(r"splits = (\d+)", log)[-1])


def answers(path, args, n=24, **named):
    with kit.Server(path, "-c", 2048, "-np", 1, *args, **named) as s:
        call = dict(n=n, n_probs=20, ignore_eos=True)
        return [s.completion(p, **call) for p in (PROMPT, PROMPT + " and then", kit.PROMPTS[0])], s.log()


def first_apart(a, b):
    """By how much the likeliest tokens of two answers differ, where both begin. Texts of random weights part soon: what an indexer
    selects turns on the last bit."""
    x, y = dict(a.probs[0]), dict(b.probs[0])
    common = [t for t, _ in a.probs[0][:10] if t in y]
    return max(abs(x[t] - y[t]) for t in common) if len(common) > 5 else math.inf


def compare(what, path, args, n_splits, env=None, **named):
    """Against stock with an f16 cache, and no further from it than stock with these types."""
    name = f"{what}, {' '.join(args) or 'f16'}" + (f", {env['QUIRE_KV']}" if env else "")
    got, log = answers(path, args, env={"QUIRE_LOG": "0", **(env or {})}, **named)
    exact, _ = answers(path, [], plugin=False, **named)
    types = args or (["-ctk", "q8_0", "-ctv", "q8_0"] if env else [])  # as many bits as the policy has
    stock = answers(path, types, plugin=False, **named)[0] if types else exact
    expect(splits(log) == n_splits, f"{name}: attention of all layers is the device's", f"{splits(log)} splits, not {n_splits}")
    expect("which is slow" not in log, f"{name}: nothing is decoded for the host", log[-500:])
    far, theirs = (max(first_apart(a, b) for a, b in zip(x, exact)) for x in (got, stock))
    expect(far < 0.05 + 2 * theirs, f"{name}: the first token is as likely as in stock", f"{far}, stock {theirs}")
    note(f"{name}: log-probabilities of the first token differ by {far:.4f}, stock's by {theirs:.4f}; "
         f"texts part at {[kit.parting(a, b) for a, b in zip(got, exact)]}")


def shared(directory=None):
    """12 layers, of which the last 6 have no cache of their own: a part of the device and one of the CPU each."""
    path, named = made("gemma4-e4b"), {"host": directory} if directory else {}
    compare("shared", path, [], 25, **named)
    if directory:
        return
    compare("shared", path, ["-ctk", "q8_0", "-ctv", "q4_0"], 25)
    compare("shared", path, [], 25, env={"QUIRE_KV": "r8"})


def selected(directory=None):
    """3 layers, each with an indexer whose cache stays with the host."""
    path, named = made("deepseek-v3.2"), {"host": directory} if directory else {}
    for args, env in (([], None), (["-ctk", "q8_0", "-ctv", "q8_0"], None), ([], {"QUIRE_KV": "r8"})):
        compare("selected", path, args, 13, env=env, **named)
        if directory:
            return


def plain():
    """A cache that is not the device's is attended by the host, where it lies."""
    for args in (["-nkvo", "-fa", "on"], ["-ngl", "0", "-fa", "on"]):
        arguments = ["-m", made("gemma4-e4b"), "-c", 1024, "-n", 16, "--temp", 0, "-no-cnv", "-p", PROMPT[:200], "-t", kit.threads,
                     "-lv", 4, *args]
        got, stock = kit.run("llama-completion", arguments), kit.run("llama-completion", arguments, plugin=False)
        n = min(len(got.out.rstrip()), len(stock.out.rstrip()))  # the program may lose the last of what it prints
        expect(splits(got.err + got.out) == 1 and n > 205 and got.out[:n] == stock.out[:n],
               f"{' '.join(args)}: the host's own graph, and stock's text", f"{got.out!r} and {stock.out!r}")


def model_buffers(log):
    """Where weights are, and how many bytes: of every model, without what a trial run without memory says."""
    found = re.findall(r"(\S+) model buffer size = +([\d.]+) MiB", log)
    return sorted((kind, size) for kind, size in found if size != "0.00")


def weights():
    """A file mapped into memory and repacked parts, for two models in one process and with the device named."""
    gemma, smol = kit.model("gemma3-270m"), kit.model("smollm2-135m")
    for args in (["-md", smol], ["-md", smol, "--load-mode", "none"]):
        logs = []
        for more, plugin in (([], False), ([], True), (["-dev", "QUIRE0", "-ts", "1"], True)):
            with kit.Server(gemma, "-c", 1024, "-np", 1, *args, *more, plugin=plugin) as s:
                s.completion(kit.PROMPTS[0], 2)
                logs.append(model_buffers(s.log()))
        expect(logs[0] and logs[0] == logs[1] == logs[2], f"{' '.join(args[2:]) or 'mapped'}: weights are where stock has them", logs)


def run():
    part(shared)
    part(selected)
    part(plain)
    part(weights)
    if directory := debian():
        part(shared, directory)
        part(selected, directory)


if __name__ == "__main__":
    kit.main(run)

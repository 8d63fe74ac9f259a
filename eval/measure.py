# SPDX-License-Identifier: MIT
"""The measurements: each takes a cache and gives figures. Files that several need are made once and kept."""
import fcntl
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import llama
from caches import Cache

TEXTS = llama.HERE / "text"
HOURS = 4 * 3600  # a program that takes longer hangs
GGUF_PINS = ["gguf==0.17.1", "numpy==2.4.6"]

# name: head size, layers with full attention of all, context it was trained for
MODELS = {"smollm2-135m": (64, 30, 8192), "gemma3-270m": (256, 3, 32768), "tinyllama-1.1b": (64, 22, 2048),
          "qwen2.5-coder-1.5b": (128, 28, 32768)}


def scratch(name="eval"):
    """A folder below the cache for what is made when absent: models with wide weights, slots."""
    base = os.environ.get("QUIRE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "quire")
    path = Path(base) / name
    path.mkdir(parents=True, exist_ok=True)
    return path


made_in = None  # a folder for what the device makes, instead of scratch()


def made():
    """Profiles, rows and logits: made when absent, and not again by another build of the device."""
    return Path(made_in) if made_in else scratch()


def quire():
    path = os.environ.get("QUIRE_TOOL") or llama.ROOT / "build/release/bin/quire"
    if not Path(path).exists():
        raise llama.Absent(f"no {path}")
    return str(path)


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


# --- files that are made once --------------------------------------------------------------------

def once(path, make):
    """The file, made by make(part) if it is not there. Several threads and programs may ask at the same time."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = f"{path}.part"
            make(part)
            os.replace(part, path)
    return path


def python_with_gguf():
    venv = scratch() / "venv"
    python = venv / "bin" / "python3"
    want = " ".join(GGUF_PINS)
    if not python.exists() or not (venv / "pins").exists() or (venv / "pins").read_text() != want:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *GGUF_PINS], check=True)
        (venv / "pins").write_text(want)
    return str(python)


def model(name):
    """A model of scripts/get-models; NAME+f32 has its weights as floats, NAME+noise also moved a little."""
    base, _, form = name.partition("+")
    path = llama.model(base)
    if not form:
        return path
    noise = ["0.02"] if form == "noise" else []
    return str(once(scratch() / f"{name}.gguf", lambda part: subprocess.run(
        [python_with_gguf(), str(llama.HERE / "expand.py"), path, part, *noise], check=True)))


def profile(name, recipe):
    """recipe: TEXT@CTXxCHUNKS, for example calibrate@2048x8; TEXT@CTXxCHUNKS-LENGTH is made for contexts of that length."""
    text, _, size = recipe.partition("@")
    size, _, length = size.partition("-")
    ctx, _, chunks = size.partition("x")
    return record(made() / f"{name}.{recipe}.profile", "QUIRE_PROFILE_RECORD", name, text, ctx, chunks,
                  {"QUIRE_PROFILE_LENGTH": length} if length else {})


def record(path, variable, name, text, ctx, chunks, env=None):
    """What the device writes down of a run of llama-perplexity."""
    return once(path, lambda part: llama.run(
        "llama-perplexity", ["-m", model(name), "-f", TEXTS / f"{text}.txt", "-c", ctx, "--chunks", chunks, "-t",
                             llama.threads, "--no-warmup"], env={variable: part, **(env or {})}, timeout=HOURS))


def logits(name, text, ctx, chunks, stock):
    """What a cache is compared with: the same program with an f16 cache."""
    path = made() / f"{name}.{text}.{ctx}x{chunks}.{'stock' if stock else 'quire'}.logits"
    return once(path, lambda part: llama.perplexity(
        model(name), ["-fa", "on"], plugin=not stock, ctx=ctx, chunks=chunks, save=part, text=TEXTS / f"{text}.txt",
        timeout=HOURS))


def rows(name, tokens):
    """Recorded K, V and Q rows."""
    return record(made() / f"{name}.{tokens}.rows", "QUIRE_ROWS_RECORD", name, "wiki", tokens, 1)


# --- measurements --------------------------------------------------------------------------------

def cache_of(name, cache, recipe):
    """A cache by its name, and the environment in which the device keeps it."""
    c = Cache(cache)
    return c, c.environment(profile(name, recipe) if c.calibrated else None)


def divergence(name, cache, text, ctx, chunks, recipe, profile_of=None):
    """Perplexity and KL divergence of the next token's distribution."""
    c, env = cache_of(profile_of or name, cache, recipe)
    figures = llama.perplexity(model(name), c.arguments(), plugin=not c.stock, env=env, ctx=ctx, chunks=chunks,
                               base=logits(name, text, ctx, chunks, c.stock), text=TEXTS / f"{text}.txt",
                               timeout=HOURS)
    figures.pop("log")
    return figures


def continued(name, cache, tokens, n, recipe):
    """The likeliest tokens, and the true one, after a long text and after each of its next n tokens."""
    c, env = cache_of(name, cache, recipe)
    with llama.Server(model(name), "-c", tokens + n + 64, "-np", 1, *c.arguments(), plugin=not c.stock, env=env) as s:
        s.patience = HOURS  # of a stock cache the prompt alone takes a quarter of an hour
        ids = s.tokens((TEXTS / "wiki.txt").read_text())[:tokens + n]
        if len(ids) < tokens + n:
            raise llama.Broken("the text is too short")
        found = []
        for i in range(n):
            top = s.completion(ids[:tokens + i], 1, n_probs=2000).probs[0]
            found.append({"top": top, "true": dict(top).get(ids[tokens + i], top[-1][1])})
    return found


def divergence_of_lists(a, b):
    """KL divergence over the tokens that two lists of log-probabilities share, all others counted as one."""
    other = dict(b)
    shared = [(p, other[t]) for t, p in a if t in other]
    rest = [max(1 - sum(math.exp(x) for x in side), 1e-12) for side in zip(*shared)] if shared else [1, 1]
    return sum(math.exp(p) * (p - q) for p, q in shared) + rest[0] * math.log(rest[0] / rest[1])


def continuation(name, cache, tokens, n, recipe):
    """KL divergence at contexts whose logits would not fit into memory: over the 2000 likeliest tokens, and the rest as one."""
    c = Cache(cache)
    path = made() / f"{name}.{tokens}+{n}.{'stock' if c.stock else 'quire'}.continued"
    once(path, lambda part: Path(part).write_text(
        json.dumps(continued(name, c.base, tokens, n, None))))
    base, mine = json.loads(path.read_text()), continued(name, cache, tokens, n, recipe)
    klds, same, gain = [], 0, 0.0
    for a, b in zip(base, mine):
        klds.append(divergence_of_lists(a["top"], b["top"]))
        same += a["top"][0][0] == b["top"][0][0]
        gain += a["true"] - b["true"]
    mean = sum(klds) / n
    error = (sum((x - mean) ** 2 for x in klds) / n / (n - 1)) ** 0.5
    return {"kld": mean, "kld_error": error, "kld99": sorted(klds)[int(0.99 * n)], "top1": 100 * same / n,
            "ratio": math.exp(gain / n)}


def attention(name, tokens, recipe):
    """Errors of attention on recorded rows, every codec of the registry, layer by layer."""
    out = subprocess.run([quire(), "rows", "--json", "--by-layer", "--policies", "all", "--tokens", str(tokens),
                          "--profile", str(profile(name, recipe)), str(rows(name, tokens))],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return {"rows": [json.loads(line) for line in out.splitlines()]}


QUESTIONS = {
    "smollm2-135m": ("<|im_start|>user\nRead this text.\n\n", "\n\nWhat is the secret number?<|im_end|>\n<|im_start|>assistant\n"
                     "The secret number is"),
    "gemma3-270m": ("", "\n\nQuestion: What is the secret number?\nAnswer: The secret number is"),
    "qwen2.5-coder-1.5b": ("<|im_start|>user\nRead this text.\n\n", "\n\nWhat is the secret number?<|im_end|>\n"
                           "<|im_start|>assistant\nThe secret number is"),
    "tinyllama-1.1b": ("<|user|>\nRead this text.\n\n", "\n\nWhat is the secret number?</s>\n<|assistant|>\nThe secret number is"),
}
NUMBERS = ["48213", "90577"]
DEPTHS = [0.1, 0.5, 0.9]


def haystack(server, name, tokens, depth, number):
    """A prompt of about that many tokens with a sentence put in at a depth."""
    text = (TEXTS / "moby.txt").read_text()
    before, after = QUESTIONS[name.partition("+")[0]]
    body = text[:int(tokens * 4.6)]
    while len(ids := server.tokens(body)) > tokens - 80:
        body = body[:int(len(body) * (tokens - 80) / len(ids))]
    at = body.index(". ", int(len(body) * depth)) + 2
    return before + body[:at] + f"The secret number is {number}. Remember it. " + body[at:] + after


def forced(server, prompt, answer):
    """Log-probability of an answer that is put into the model's mouth, token by token."""
    total = 0.0
    ids = server.tokens(prompt)
    for want in server.tokens(answer, special=False):
        got = server.completion(ids, 1, n_probs=2000).probs[0]
        total += dict(got).get(want, got[-1][1])
        ids = ids + [want]
    return total


def needles(name, cache, tokens, recipe):
    """Log-probability of the needle at several depths, and whether it is found without help."""
    c, env = cache_of(name, cache, recipe)
    found = []
    with llama.Server(model(name), "-c", tokens + 256, "-np", 1, *c.arguments(), plugin=not c.stock, env=env) as s:
        for number in NUMBERS:
            for depth in DEPTHS:
                prompt = haystack(s, name, tokens, depth, number)
                logprob = forced(s, prompt, " " + number)
                hit = number in s.completion(prompt, 12).text
                found.append({"number": number, "depth": depth, "logprob": round(logprob, 4), "hit": hit})
    return {"needles": found}


def greedy(name, cache, n, recipe, prompts=20, slots=1):
    """Texts that go on from some prompts, greedily. With several slots the server reads the weights once for all of them."""
    c, env = cache_of(name, cache, recipe)
    text = (TEXTS / "moby.txt").read_text()
    with llama.Server(model(name), "-c", 2048 * slots, "-np", slots, *c.arguments(), plugin=not c.stock, env=env) as s:
        s.patience = HOURS
        calls = [{"prompt": text[8000 * i:8000 * i + 1500], "n": n, "cache": False, "ignore_eos": True} for i in range(prompts)]
        groups = [calls[i:i + slots] for i in range(0, prompts, slots)]
        return {"tokens": [answer.tokens for group in groups for answer in s.together(group)]}

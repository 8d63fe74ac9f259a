#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures with an unmodified llama.cpp how much cache policies change the output of real models, and keeps the results.

    quire eval [--suite NAME,...] [--models NAME,...] [--caches NAME,...] [--jobs 2] [--again] [--list] [--results DIR]

Suites (default: all except short):
    headline   perplexity, KL divergence and top-1 agreement over much text, for the presets and the main policies
    windows    the same with compressed window layers too, as in stock llama.cpp (Gemma3)
    more       the same over less text for every other cache (SmolLM2, Gemma3)
    long       the same at 4K and 8K (SmolLM2), 4K, 16K and 32K (Gemma3)
    profiles   profiles across texts, lengths and changed weights (SmolLM2, Gemma3)
    rows       error of attention on recorded rows, every codec, by layer (SmolLM2, Gemma3)
    needles    log-probability of a sentence in a haystack, by depth
    greedy     where greedy texts first differ from those of the f16 cache
    short      a little of everything, for eval/check.py; not part of "all"

A result is a line of results/MODEL.jsonl with the command that reproduces it, the commit and the hash of the model. Results
that exist are not measured again, so you can stop a run and continue it at any time. Models, profiles and logits are kept in
the cache folder (about 35 GB; quire eval --clean removes them).
"""
import argparse
import itertools
import json
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import caches
import llama
import measure

SMOL, GEMMA, TINY, QWEN = "smollm2-135m+f32", "gemma3-270m+f32", "tinyllama-1.1b+f32", "qwen2.5-coder-1.5b+f32"
SMALL, LARGE = (SMOL, GEMMA), (TINY, QWEN)  # large ones take minutes per context: no suites but headline, needles and greedy
RECIPE = {SMOL: "calibrate@2048x12-8192", GEMMA: "calibrate@2048x6-8192",
          TINY: "calibrate@512x8-2048", QWEN: "calibrate@512x8-8192"}  # TinyLlama was trained for 2048 tokens
CHUNKS = {SMOL: 16, GEMMA: 4, TINY: 2, QWEN: 2}  # contexts of the headline
FEWER = {SMOL: 4, GEMMA: 2}  # contexts over which every cache is compared
LONG = {SMOL: [(4096, 2), (8192, 1)], GEMMA: [(4096, 1)]}
LONGER = {SMOL: [], GEMMA: [16384, 32000]}  # logits over Gemma3's vocabulary do not fit into memory there
NEEDLE_TOKENS = {SMOL: 4096, GEMMA: 2048, TINY: 2048, QWEN: 2048}


def divergence_jobs(model, names, text, ctx, chunks, recipe):
    return [{"what": "divergence", "model": model, "cache": c, "text": text, "ctx": ctx, "chunks": chunks,
             **({"recipe": recipe} if caches.Cache(c).calibrated else {})} for c in names]


def headline(model):
    names = caches.LARGE if model in LARGE else caches.HEADLINE
    return divergence_jobs(model, [*caches.BASES, *names], "wiki", 2048, CHUNKS[model], RECIPE[model])


def more(model):
    """Fewer chunks: what the caches of the headline had after as many is in their results."""
    return divergence_jobs(model, caches.MORE, "wiki", 2048, FEWER[model], RECIPE[model]) if model in SMALL else []


def windows(model):
    return divergence_jobs(model, caches.WINDOWED, "wiki", 2048, 4, RECIPE[model]) if model == GEMMA else []


def long(model):
    if model not in SMALL:
        return []
    jobs = []
    for ctx, chunks in LONG[model]:
        jobs += divergence_jobs(model, [*caches.BASES, *caches.FEW], "wiki", ctx, chunks, RECIPE[model])
    for tokens in LONGER[model]:
        jobs += [with_profile({"what": "continuation", "model": model, "cache": c, "tokens": tokens, "n": 128}, model)
                 for c in caches.FEWEST]
    return jobs


def profiles(model):
    """The same cache with profiles from other texts, lengths and weights."""
    if model not in SMALL:
        return []
    jobs = []
    chunks = FEWER[model]
    much = RECIPE[model].removeprefix("calibrate").partition("-")[0]
    for recipe in (f"plays{much}-8192", "calibrate@512x12-8192", f"calibrate{much}", f"calibrate{much}-32768"):
        jobs += divergence_jobs(model, ["c:r4/r4"], "wiki", 2048, chunks, recipe)
    jobs += divergence_jobs(model, ["r4", "c:r4/r4"], "plays", 2048, chunks, RECIPE[model])
    jobs += divergence_jobs(model, ["c:r4/r4"], "plays", 2048, chunks, f"wiki{much}-8192")
    ctx, chunks = LONG[model][-1]
    jobs += divergence_jobs(model, ["r4", "c:r4/r4"], "wiki", ctx, chunks, RECIPE[model])
    jobs += divergence_jobs(model, ["c:r4/r4"], "wiki", ctx, chunks, f"calibrate{much}")
    noisy = model.replace("+f32", "+noise")
    jobs += divergence_jobs(noisy, ["r4", "c:r4/r4", "c:r4/r4"], "wiki", 2048, 2, RECIPE[model])
    jobs[-1] = {**jobs[-1], "profile_of": model}
    return jobs


def rows(model):
    return [{"what": "attention", "model": model, "tokens": 2048, "recipe": RECIPE[model]}] if model in SMALL else []


def with_profile(job, model):
    return {**job, "recipe": RECIPE[model]} if caches.Cache(job["cache"]).calibrated else job


def needles(model):
    return [with_profile({"what": "needles", "model": model, "cache": c, "tokens": NEEDLE_TOKENS[model]}, model)
            for c in [*caches.BASES, *caches.TOLD]]


def greedy(model):
    less = {"prompts": 10, "slots": 10} if model in LARGE else {}
    return [with_profile({"what": "greedy", "model": model, "cache": c, "n": 100, **less}, model)
            for c in [*caches.BASES, *caches.TOLD]]


def short(model):
    if model != SMOL:
        return []
    recipe = "calibrate@512x8"
    return divergence_jobs(model, caches.SHORT, "wiki", 512, 4, recipe) + [
        {"what": "attention", "model": model, "tokens": 512, "recipe": recipe}]


SUITES = {f.__name__: f for f in (headline, windows, rows, more, profiles, greedy, needles, long, short)}


# --- results -------------------------------------------------------------------------------------

def key(job):
    return json.dumps(job, sort_keys=True)


class Results:
    """Lines of JSON by model; a later line replaces an earlier one of the same job."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self.done = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.done[key(row["job"])] = row

    def add(self, job, figures, seconds):
        row = {"job": job, "figures": figures, "seconds": round(seconds), "commit": commit(), "command": command(job),
               "model_sha256": model_hash(job["model"])}
        with self.lock:
            self.done[key(job)] = row
            with open(self.folder / f"{job['model'].partition('+')[0]}.jsonl", "a") as f:
                f.write(json.dumps(row) + "\n")


def command(job):
    return "quire eval --job '" + json.dumps(job) + "'"


_hashes = {}


def commit():
    if "commit" not in _hashes:
        done = subprocess.run(["git", "-C", str(llama.ROOT), "describe", "--always", "--dirty"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
        _hashes["commit"] = done.stdout.strip() or "unknown"
    return _hashes["commit"]


def model_hash(name):
    """Of the file that scripts/get-models fetched."""
    base = name.partition("+")[0]
    if base not in _hashes:
        _hashes[base] = measure.sha256(llama.model(base))
    return _hashes[base]


# --- running -------------------------------------------------------------------------------------

def perform(job):
    arguments = {k: v for k, v in job.items() if k not in ("what", "model")}
    arguments.setdefault("recipe", None)
    return getattr(measure, job["what"])(job["model"], **arguments)


def describe(job):
    return " ".join(str(v) for k, v in job.items() if k not in ("model", "recipe"))


def work(todo, results, progress):
    while True:
        try:
            job = todo.get_nowait()
        except queue.Empty:
            return
        start = time.monotonic()
        try:
            figures = perform(job)
        except Exception as e:  # whatever went wrong: the next job may still go well
            progress.failed(job, e)
            continue
        results.add(job, figures, time.monotonic() - start)
        progress.one(job, figures)


class Progress:
    def __init__(self, total):
        self.total, self.n, self.bad, self.start, self.lock = total, 0, 0, time.monotonic(), threading.Lock()

    def line(self, text):
        with self.lock:
            self.n += 1
            used = time.monotonic() - self.start
            left = used / self.n * (self.total - self.n)
            print(f"[{self.n}/{self.total}, {left / 60:.0f} min left] {text}", flush=True)

    def one(self, job, figures):
        short = ", ".join(f"{k} {figures[k]:.5g}" for k in ("kld", "kld99", "top1", "ratio") if k in figures)
        self.line(f"{job['model']} {describe(job)}: {short or 'done'}")

    def failed(self, job, why):
        self.bad += 1
        self.line(f"{job['model']} {describe(job)}: FAILED: {str(why)[:600]}")


def arguments():
    p = argparse.ArgumentParser(prog="quire eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", default=",".join(s for s in SUITES if s != "short"), help="suites, separated by commas")
    p.add_argument("--models", default=",".join(RECIPE), help=f"models, separated by commas (default: {','.join(RECIPE)})")
    p.add_argument("--caches", default="", help="measure only these caches")
    p.add_argument("--jobs", type=int, default=2, help="number of programs to run at the same time, each with one thread")
    p.add_argument("--job", default="", help="measure one job, given as JSON")
    p.add_argument("--again", action="store_true", help="measure again what has a result already")
    p.add_argument("--list", action="store_true", help="print the jobs that have no result yet")
    p.add_argument("--results", default=str(llama.HERE / "results"), help="folder of the results")
    p.add_argument("--prepare", action="store_true", help="only create the models")
    p.add_argument("--clean", action="store_true", help="remove the models, profiles and logits in the cache folder")
    return p.parse_args()


def chosen_of(suites, models):
    jobs = itertools.chain(*(SUITES[s](m) for s, m in itertools.product(suites, models)))
    return list({key(j): j for j in jobs}.values())


def chosen(a):
    if a.job:
        return [json.loads(a.job)]
    jobs = chosen_of(a.suite.split(","), a.models.split(","))
    return [j for j in jobs if not a.caches or j.get("cache") in a.caches.split(",")]


def work_through(jobs, results, n_at_once):
    """How many failed."""
    llama.threads = "1" if n_at_once > 1 else "2"
    todo, progress = queue.Queue(), Progress(len(jobs))
    for job in jobs:
        todo.put(job)
    team = [threading.Thread(target=work, args=(todo, results, progress), daemon=True) for _ in range(n_at_once)]
    for t in team:
        t.start()
    for t in team:
        t.join()
    return progress.bad


def main():
    a = arguments()
    if a.clean:
        shutil.rmtree(measure.scratch())
        return 0
    if a.prepare:
        for name in a.models.split(","):
            measure.model(name)
        return 0
    results = Results(a.results)
    jobs = [j for j in chosen(a) if a.again or a.job or key(j) not in results.done]
    if a.list:
        print("\n".join(f"{j['model']} {describe(j)}" for j in jobs))
        return 0
    return 1 if work_through(jobs, results, a.jobs) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except llama.Absent as e:
        sys.exit(f"quire eval: {e}")

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes docs/fidelity.md and its pictures from the results.

    eval/report.py [--check]         --check: fails if docs/fidelity.md does not match the results
    eval/report.py --presets-table   prints the table of presets that README.md and docs/operator.md show, and writes nothing

The first needs the command quire, for the sizes of codecs: QUIRE_TOOL, or build/release/bin/quire.
"""
import itertools
import re
import statistics
import sys
from decimal import Decimal

import caches
import llama
import measure
from run import CHUNKS, FEWER, GEMMA, LARGE, LONG, LONGER, NEEDLE_TOKENS, QWEN, RECIPE, SMALL, SMOL, TINY, Results, key
from run import profiles as profile_jobs
from svg import Plot

DOC = llama.ROOT / "docs" / "fidelity.md"
PICTURES = llama.ROOT / "docs" / "fidelity"
NAMES = {SMOL: "SmolLM2-135M", GEMMA: "Gemma3-270M", TINY: "TinyLlama-1.1B", QWEN: "Qwen2.5-Coder-1.5B"}
# Only those of which there are results.
NAMES = {m: name for m, name in NAMES.items() if (llama.HERE / "results" / f"{m.partition('+')[0]}.jsonl").exists()}
OTHERS = ("llama.cpp", "MLX")
NOT_MEASURED = "not measured"


class Evidence:
    """The results, by what was asked."""

    def __init__(self, results):
        self.rows = list(results.done.values())
        self.memo = {}

    def find(self, **job):
        for row in self.rows:
            if all(row["job"].get(k) == v for k, v in job.items()):
                return row["figures"] if job["what"] != "divergence" else self.against_f16(row)
        return None

    def against_f16(self, row):
        """The perplexity ratio is to the f16 cache of the same program. The one in the results is to logits that were rounded to
        16 bits on their way through a file, which alone moves it by up to 0.4 %; it is left out where f16 was not run."""
        job, figures = row["job"], dict(row["figures"])
        f16 = caches.Cache(job["cache"]).base
        base = next((r["figures"] for r in self.rows if r["job"] == {**without(job, "recipe", "profile_of"), "cache": f16}), None)
        figures["ratio"] = figures["ppl"] / base["ppl"] if base else None
        return figures

    def divergence(self, model, cache, ctx=2048, chunks=None, text="wiki", recipe=None):
        recipe = (recipe or RECIPE[model]) if caches.Cache(cache).calibrated else None
        return self.find(what="divergence", model=model, cache=cache, ctx=ctx, chunks=chunks or CHUNKS[model],
                         text=text, recipe=recipe)

    def fewer(self, model, cache):
        """Over the first chunks only; runs over more chunks tell these too."""
        whole = self.divergence(model, cache)
        n = FEWER[model]
        if whole and len(whole.get("by_chunk", [])) >= n:
            kld, error, top1, _ = whole["by_chunk"][n - 1]
            return {"kld": kld, "kld_error": max(error, 5e-6), "top1": top1}  # five digits behind the point are printed
        return self.divergence(model, cache, chunks=n)

    def bits(self, model, cache):
        if (model, cache) not in self.memo:
            c = caches.Cache(cache)
            self.memo[model, cache] = caches.bits(measure.quire(), c.k, c.v, head_size(model))
        return self.memo[model, cache]


def head_size(model):
    return measure.MODELS[model.partition("+")[0]][0]


def quoted(cache):
    """Policies as what one types, stock caches as words."""
    return cache if caches.Cache(cache).stock else f"`{cache}`"


def without(job, *keys):
    return {k: v for k, v in job.items() if k not in keys}


def number(x, digits=3):
    if x is None:
        return ""
    x = x or 0.0  # llama-perplexity prints -0 for an f16 cache
    return f"{x:.{digits}g}" if abs(x) < 1 else f"{x:.{digits}f}".rstrip("0").rstrip(".")


def table(head, rows):
    if not rows:
        return ["Not measured yet.", ""]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows] + [""]


def figures(f):
    """Cells of a result: KL with its error, 99 %, top-1, perplexity ratio."""
    if not f:
        return ["", "", "", ""]
    kld = number(f["kld"]) + (f" ± {number(f['kld_error'], 1)}" if f.get("kld_error") else "")
    return [kld, number(f.get("kld99")), f"{f['top1']:.1f}" if f.get("top1") is not None else "",
            f"{f['ratio']:.4f}" if f.get("ratio") else ""]


# --- parts ---------------------------------------------------------------------------------------

# What each preset is judged by: the stock cache, and what has to hold against it.
JUDGES = {
    "safe": ("stock q8_0", "KL is no larger, with fewer bits", lambda mine, other, bits, less: mine["kld"] <= other["kld"] and less),
    "balanced": ("stock q5_1", "at most 5.25 bits, the same token more often, perplexity within 1.5 %",
                 lambda mine, other, bits, less: bits <= 5.25 and mine["top1"] > other["top1"] and abs(mine["ratio"] - 1) <= 0.015),
    "small": ("stock q4_0", "KL is smaller, with fewer bits", lambda mine, other, bits, less: mine["kld"] < other["kld"] and less),
    "small, profile": ("stock q4_0", "KL is smaller, with at most 3.8 bits",
                       lambda mine, other, bits, less: mine["kld"] < other["kld"] and bits <= 3.8),
}


# Presets as in src, so that their table needs no build; presets() compares it with what the command says.
PRESETS = {"safe": ("r8/r8", "c:r8/r8"), "balanced": ("r6/r4", "c:r5/r4"), "small": ("r5/r3", "c:r4/r3")}


def measured_name(policy):
    """A pair of one codec was measured under the codec's name."""
    k, _, v = policy.partition("/")
    return k if k == v else policy


def presets(e):
    rows = []
    for preset in caches.presets(measure.quire()):
        if preset["name"] not in JUDGES:
            continue
        if PRESETS[preset["name"]] != (preset["without"], preset["with_profile"]):
            sys.exit(f"eval/report.py: PRESETS does not say what the preset {preset['name']} is")
        judge = JUDGES[preset["name"]][0]
        for model in NAMES:
            other = e.divergence(model, judge)
            rows.append(["", judge, NAMES[model], number(e.bits(model, judge)), *(figures(other) if other else [NOT_MEASURED, "", "", ""]), ""])
            for form in ("without", "with_profile"):
                name = preset["name"] + (", profile" if form == "with_profile" else "")
                _, what, holds = JUDGES.get(name) or JUDGES[preset["name"]]
                c = measured_name(preset[form])
                mine, bits = e.divergence(model, c), e.bits(model, c)
                if mine and other:
                    verdict = ("yes: " if holds(mine, other, bits, bits < e.bits(model, judge)) else "**no**; wanted: ") + what
                else:
                    verdict = ""
                rows.append([name, f"`{c}`", NAMES[model], number(bits), *(figures(mine) if mine else [NOT_MEASURED, "", "", ""]), verdict])
    return table(["preset", "cache", "model", "bits", "mean KL", "99 %", "same token %", "perplexity ratio",
                  "better than the stock cache?"], rows)


def headline(e, models, names):
    rows = []
    for c in sorted(["f16", *names], key=lambda c: (-e.bits(models[0], c), c)):
        rows.append([quoted(c), *itertools.chain(*([number(e.bits(m, c)), *figures(e.divergence(m, c))] for m in models))])
    return table(["cache", *itertools.chain(*(["bits", f"{NAMES[m]}: mean KL", "99 %", "same token %", "perplexity ratio"]
                                              for m in models))], rows)


def headline_small(e):
    return headline(e, SMALL, caches.HEADLINE)


def headline_large(e):
    return headline(e, [m for m in LARGE if m in NAMES], caches.LARGE)


WINDOW_LAYERS, WINDOW, FULL_LAYERS = 15, 512, measure.MODELS["gemma3-270m"][1]  # of Gemma3


def whole_bits(bits, window_bits, tokens):
    """Bits per value over all rows that a model with windows keeps of a context."""
    window, full = WINDOW_LAYERS * min(WINDOW, tokens), FULL_LAYERS * tokens
    return (window * window_bits + full * bits) / (window + full)


def windows(e):
    rows = []
    pairs = dict.fromkeys(c.partition(",")[0] for c in caches.WINDOWED)
    for c in [*(p for p in pairs if e.divergence(GEMMA, p)), *caches.WINDOWED, "stock q8_0", "stock q5_1", "stock q4_0"]:
        pair, _, window = c.partition(",window=")
        if window:
            said = quoted(window)
        else:
            window, said = (pair, "the same") if caches.Cache(c).stock else ("f16", "f16")
        bits, window_bits = e.bits(GEMMA, pair), e.bits(GEMMA, window)
        rows.append([quoted(pair), said,
                     number(bits), *(number(whole_bits(bits, window_bits, n)) for n in (2048, 32768)), *figures(e.divergence(GEMMA, c))])
    return table(["cache", "window layers", "bits, full layers", "all layers at 2K", "at 32K", "mean KL", "99 %", "same token %", "perplexity ratio"], rows)


def everything(e):
    rows = []
    names = sorted({*caches.HEADLINE, *caches.MORE}, key=lambda c: (-e.bits(SMOL, c), c))
    for c in names:
        cells = [figures(e.fewer(m, c)) for m in SMALL]
        if any(cells[0]) or any(cells[1]):
            rows.append([quoted(c), number(e.bits(SMOL, c)), cells[0][0], cells[0][2],
                         number(e.bits(GEMMA, c)), cells[1][0], cells[1][2]])
    return table(["cache", "bits", "SmolLM2-135M: mean KL", "same token %", "bits", "Gemma3-270M: mean KL", "same token %"], rows)


def points(e, model):
    """(bits, KL, cache) of every cache measured, over the same text."""
    found = []
    for c in {*caches.HEADLINE, *caches.MORE} if model in SMALL else caches.LARGE:
        f = e.fewer(model, c) if model in SMALL else e.divergence(model, c)
        if f:
            found.append((e.bits(model, c), f["kld"], c))
    return sorted(found)


def label(cache):
    """Types of llama.cpp stand for stock's unless it is said."""
    c = caches.Cache(cache)
    return cache if c.family != "llama.cpp" else cache.removeprefix("stock ") if c.stock else f"{cache} in the device"


def frontier_plot(e, model, path):
    plot = Plot(f"{NAMES[model]}: error against size", "bits per value" + (" of the layers with full attention" if model == GEMMA else ""),
                "mean KL divergence to the f16 cache", log_y=True)
    all_points = points(e, model)
    for family in ("Quire", "Quire, with a profile", "llama.cpp", "MLX"):
        mine = [(b, k, c) for b, k, c in all_points if caches.Cache(c).family == family]
        plot.add(family, [(b, k) for b, k, _ in mine], labels=[label(c) for _, _, c in mine])
    if plot.series:
        plot.save(path)


def frontier_check(e):
    """For each cache of others: the best of Quire with no more bits."""
    rows = []
    for model in SMALL:
        all_points = points(e, model)
        for bits, kld, cache in all_points:
            c = caches.Cache(cache)
            if c.family not in OTHERS or c.family == "llama.cpp" and not c.stock:
                continue
            cells = []
            for families in (("Quire",), ("Quire", "Quire, with a profile")):
                mine = [(k, c) for b, k, c in all_points if b <= bits and caches.Cache(c).family in families]
                best = min(mine, default=None)
                cells.append(f"`{best[1]}` {number(best[0])}" + ("" if best[0] < kld else " **(not lower)**") if best
                             else "none")
            rows.append([NAMES[model], quoted(cache), number(bits), number(kld), *cells])
    return table(["model", "cache", "bits", "mean KL", "best of Quire with no more bits", "the same, profiles allowed"], rows)


def long_contexts(e):
    rows = []
    for model in SMALL:
        for ctx, chunks in LONG[model]:
            for c in caches.FEW:
                f = e.divergence(model, c, ctx=ctx, chunks=chunks)
                if f:
                    rows.append([NAMES[model], ctx, quoted(c), number(e.bits(model, c)), *figures(f)])
        for tokens in LONGER[model]:
            for c in caches.FEWEST:
                f = e.find(what="continuation", model=model, cache=c, tokens=tokens)
                if f:
                    rows.append([NAMES[model], tokens, quoted(c), number(e.bits(model, c)), *figures(f)])
    return table(["model", "context", "cache", "bits", "mean KL", "99 %", "same token %", "perplexity ratio"], rows)


def profile_rows(e):
    rows = []
    for model in SMALL:
        for cache, recipe in (("r4", ""), ("c:r4/r4", RECIPE[model])):
            rows.append([model.replace("+f32", ""), "wiki", 2048, FEWER[model], f"`{cache}`", recipe, "", *figures(e.fewer(model, cache))[:3]])
    done = {key(row["job"]): row["figures"] for row in e.rows}
    for job in [*profile_jobs(SMOL), *profile_jobs(GEMMA)]:
        if key(job) not in done:
            continue
        rows.append([job["model"].replace("+f32", "").replace("+noise", ", weights moved by 2 %"), job["text"],
                     job["ctx"], job["chunks"], f"`{job['cache']}`", job.get("recipe", ""),
                     "of the unmoved weights" if job.get("profile_of") else "", *figures(done[key(job)])[:3]])
    rows.sort(key=lambda r: (r[0], r[1], r[2], r[4], r[5]))
    return table(["model", "text", "tokens", "contexts", "cache", "profile", "", "mean KL", "99 %", "same token %"], rows)


def attention(e):
    lines = []
    for model in SMALL:
        f, d = e.find(what="attention", model=model, tokens=2048), head_size(model)
        if not f:
            continue
        whole = [r for r in f["rows"] if "layer" not in r and all(int(g) <= d for g in re.findall(r"g(\d+)", r["policy"]))]
        rows = [[f"`{r['policy']}`", number(r["bits"]), number(r["out"]), number(r["score"]), number(r["k"]),
                 number(r["v"])] for r in sorted(whole, key=lambda r: -r["bits"])]
        lines += [f"### {NAMES[model]}", ""] + table(["codec", "bits", "output", "score", "K", "V"], rows)
    return lines


def layer_plot(e, model, path):
    f = e.find(what="attention", model=model, tokens=2048)
    if not f:
        return
    plot = Plot(f"{NAMES[model]}: error of attention's output by layer", "layer", "relative error", log_y=True)
    for policy in ("q4_0", "a4g64", "r4", "c:r4/r4", "r5", "r8"):
        plot.add(policy, [(r["layer"], r["out"]) for r in f["rows"] if r["policy"] == policy and "layer" in r], line=True)
    plot.save(path)


def needle_rows(e):
    rows = []
    for model in NAMES:
        tokens = NEEDLE_TOKENS[model]
        for c in [*caches.BASES, *caches.TOLD]:
            f = e.find(what="needles", model=model, cache=c, tokens=tokens)
            if not f or not needles_found(e, model, c):
                continue
            by_depth = [statistics.mean(n["logprob"] for n in f["needles"] if n["depth"] == d) for d in measure.DEPTHS]
            rows.append([NAMES[model], tokens, quoted(c), needle_cell(e, model, c), *(f"{x:.2f}" for x in by_depth)])
    return table(["model", "tokens", "cache", "found, of those that f16 finds",
                  *(f"log-probability at {100 * d:.0f} %" for d in measure.DEPTHS)], rows)


def needle_plot(e, model, tokens, path):
    plot = Plot(f"{NAMES[model]}: log-probability of the needle, {tokens} tokens", "depth in percent",
                "log-probability of the five digits")
    for c in ("f16", "stock q8_0", "stock q4_0", "a4g64", "r6/r4", "c:r5/r4", "c:r4/r3"):
        f = e.find(what="needles", model=model, cache=c, tokens=tokens)
        if f:
            plot.add(c, [(100 * d, statistics.mean(n["logprob"] for n in f["needles"] if n["depth"] == d))
                         for d in measure.DEPTHS], line=True)
    if plot.series:
        plot.save(path)


def parting(a, b):
    """Index of the first token in which two texts differ; their length if there is none."""
    return next((i for i, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y), len(a))


def greedy_rows(e):
    rows = []
    for model in NAMES:
        for c in caches.TOLD:
            if found := greedy_ends(e, model, c):
                rows.append([NAMES[model], quoted(c), f"{statistics.median(found[0]):g} of {found[1]}", greedy_cell(e, model, c)])
    return table(["model", "cache", "median number of equal tokens", "texts that are equal to the end"], rows)


# --- presets, for other pages -------------------------------------------------------------------

def needles_found(e, model, cache):
    """How many needles a cache finds, of those that the f16 cache of the same program finds."""
    base, f = (e.find(what="needles", model=model, cache=c, tokens=NEEDLE_TOKENS[model]) for c in (caches.Cache(cache).base, cache))
    if not base or not f:
        return None
    could = [n["hit"] for n, b in zip(f["needles"], base["needles"]) if b["hit"]]
    return sum(could), len(could)


def greedy_ends(e, model, cache):
    """For each prompt the number of tokens until the text parts from that of the f16 cache; and how many were made."""
    base, f = (e.find(what="greedy", model=model, cache=c) for c in (caches.Cache(cache).base, cache))
    if not base or not f:
        return None
    return [parting(x, y) for x, y in zip(base["tokens"], f["tokens"])], len(base["tokens"][0])


def plain(x):
    """Three digits without an exponent."""
    return format(Decimal(f"{x:.3g}"), "f")


def greedy_cell(e, model, cache):
    found = greedy_ends(e, model, cache)
    return f"{sum(end == found[1] for end in found[0])} of {len(found[0])}" if found else NOT_MEASURED


def needle_cell(e, model, cache):
    found = needles_found(e, model, cache)
    return f"{found[0]} of {found[1]}" if found else NOT_MEASURED


def token_cell(e, model, cache):
    f = e.divergence(model, cache)
    return f"{plain(f['kld'])}, {f['top1']:.1f} %" if f else NOT_MEASURED


def plain_bits(policy, d):
    """Bits per value of row-scaled codecs, which have 16 bits per row beside their codes, and of stock types."""
    if policy.startswith("stock q"):
        return float(policy.removeprefix("stock q")[0]) + 0.5
    return sum(int(codec.rpartition("r")[2]) + 16 / d for codec in policy.split("/")) / 2


def presets_table(e=None):
    """One row per preset without and with a profile, and stock types to compare with: lines of Markdown."""
    e = e or Evidence(Results(llama.HERE / "results"))
    chosen = [("", "stock q8_0")]
    for name, (without, with_profile) in PRESETS.items():
        chosen += [("", "stock q4_0")] if name == "small" else []
        chosen += [(f"`{name}`", without), (f"`{name}` with a profile", with_profile)]
    head = ["preset", "K/V", "bits per value, head size 64 / 128 / 256", *(f"{NAMES[m]}: mean KL, same token" for m in NAMES)]
    columns = [(token_cell, m) for m in NAMES]
    for what, cell in (("greedy texts equal", greedy_cell), ("needles found", needle_cell)):
        for m in NAMES:
            if m in SMALL or any(cell(e, m, measured_name(policy)) != NOT_MEASURED for _, policy in chosen):
                head.append(f"{NAMES[m]}: {what}")
                columns.append((cell, m))
    rows = [[name, quoted(policy), " / ".join(number(plain_bits(policy, d)) for d in (64, 128, 256)),
             *(cell(e, m, measured_name(policy)) for cell, m in columns)] for name, policy in chosen]
    return table(head, rows)[:-1]


# --- document ------------------------------------------------------------------------------------

def document(e):
    text = (llama.HERE / "fidelity.in.md").read_text()
    for name, part in (("PRESETS", presets), ("HEADLINE", headline_small), ("LARGE", headline_large),
                       ("WINDOWS", windows), ("EVERYTHING", everything), ("FRONTIER", frontier_check),
                       ("LONG", long_contexts), ("PROFILES", profile_rows), ("ATTENTION", attention),
                       ("NEEDLES", needle_rows), ("GREEDY", greedy_rows)):
        text = text.replace(f"<!-- {name} -->\n", "\n".join(part(e)) + "\n")
    return text.rstrip("\n") + "\n"


def pictures(e):
    PICTURES.mkdir(exist_ok=True)
    for model in NAMES:
        short = NAMES[model].split("-")[0].lower().replace(".", "")
        frontier_plot(e, model, PICTURES / f"frontier-{short}.svg")
        layer_plot(e, model, PICTURES / f"layers-{short}.svg")
        needle_plot(e, model, NEEDLE_TOKENS[model], PICTURES / f"needle-{short}.svg")


def main():
    e = Evidence(Results(llama.HERE / "results"))
    if "--presets-table" in sys.argv[1:]:
        print("\n".join(presets_table(e)))
        return 0
    text = document(e)
    if "--check" in sys.argv[1:]:
        return 0 if DOC.exists() and DOC.read_text() == text else "docs/fidelity.md is not what eval/report.py makes"
    DOC.write_text(text)
    pictures(e)
    return 0


if __name__ == "__main__":
    sys.exit(main())

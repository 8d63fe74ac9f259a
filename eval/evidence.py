#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tools/llama/evidence.h from the results: the figures that `quire plan` prints about the accuracy of policies.

    eval/evidence.py [--check]     --check: fails if tools/llama/evidence.h does not match the results

Uses results/MODEL.jsonl (the headline: 2048 tokens, wiki) where they exist, and the expected figures of eval/check.py on
SmolLM2 for other caches. Missing rows are left out.

"stock q8_0", "stock q5_1" and "stock q4_0" are llama.cpp's own cache types for K and V, measured without the device: llama.cpp
rotates their rows and attends to them itself. A policy such as q4_0 has the same codes without that rotation, and is another row.
"""
import json
import sys
from pathlib import Path

from run import Results

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent / "tools" / "llama" / "evidence.h"
STOCK = {"stock q8_0", "stock q5_1", "stock q4_0"}
BEGIN = """/* SPDX-License-Identifier: MIT */
/* evidence: what policies cost on real models, against f16. Made by eval/evidence.py; do not edit. */
#ifndef QUIRE_TOOLS_EVIDENCE_H
#define QUIRE_TOOLS_EVIDENCE_H

/* policy: in canonical form, or "stock TYPE": llama.cpp's own type, which llama.cpp rotates and attends to by itself. */
typedef struct evidence {
    const char *policy, *model;
    double kld;  /* mean KL divergence */
    double top1; /* percent of tokens with the same likeliest choice; 0: not measured */
} evidence;

/* clang-format off */
static const evidence evidence_rows[] = {
"""
END = """};
/* clang-format on */

#define N_EVIDENCE (sizeof evidence_rows / sizeof evidence_rows[0])

#endif
"""


def canonical(name):
    """One codec stands for both sides, of the main pair and of what an item such as window= names."""
    def pair(text):
        key, equals, codecs = text.rpartition("=")
        return key + equals + (codecs if "/" in codecs else f"{codecs}/{codecs}")

    return ",".join(pair(part) for part in name.split(","))


def measured():
    """(policy, model) -> (KL, same token), over as much text as there is."""
    found = {}
    for row in Results(HERE / "results").done.values():
        job, figures = row["job"], row["figures"]
        if job["what"] != "divergence" or job["ctx"] != 2048 or job["text"] != "wiki":
            continue
        cache = job["cache"]
        if "noise" in job["model"] or cache.startswith(("stock ", "f16")) and cache not in STOCK:
            continue
        name = cache if cache in STOCK else {"k8v4": "a8g64/a4g64"}.get(cache) or canonical(cache)
        key = name, job["model"].partition("+")[0]
        more = key not in found or job["chunks"] > found[key][0]
        if more or job["chunks"] == found[key][0] and figures["kld"] > found[key][1]:  # of two profiles the worse one
            found[key] = job["chunks"], figures["kld"], figures.get("top1") or 0
    return {key: value[1:] for key, value in found.items()}


def expected(found):
    """eval/check.py's figures of SmolLM2, for what was not measured at length."""
    for name, value in json.loads((HERE / "expected.json").read_text()).items():
        if name.startswith("KL ") and "stock" not in name:
            found.setdefault((canonical(name.removeprefix("KL ")), "smollm2-135m"), (value, 0))


def header():
    found = measured()
    expected(found)
    rows = [f'    {{"{policy}", "{model}", {kld:.4g}, {top1:.4g}}},\n' for (policy, model), (kld, top1) in sorted(found.items())]
    return BEGIN + "".join(rows) + END


def main():
    text = header()
    if "--check" in sys.argv[1:]:
        if HEADER.read_text() != text:
            sys.exit("tools/llama/evidence.h does not match the results; run eval/evidence.py to make it again")
    else:
        HEADER.write_text(text)


if __name__ == "__main__":
    main()

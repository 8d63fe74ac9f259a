#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fills the tables and figures of README.md, docs/operator.md and docs/bench/end-to-end.md from measured rows, and checks the first two.

    python3 eval/pages.py            writes them anew
    python3 eval/pages.py --check    says what is not as measured; exit status 1

A table stands between `<!-- made: NAME -->` and `<!-- /made -->`, a figure in a sentence as `<!--=NAME-->figure<!--/-->`; NAME is a
function or a key below. Outside of these, of code and of headings a figure with a unit of measurement is refused, and so are words
that praise where a figure exists.
"""
import json
import re
import sys
from pathlib import Path

import end_to_end
import report

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/operator.md", "docs/bench/end-to-end.md"]
STRICT = PAGES[:2]
ROWS = ROOT / "docs/bench/end-to-end.jsonl"

# Words that promise more than a figure does.
PRAISE = r"\b(rarely|same texts?|just|simply|nearly free|almost free|blazing\w*|effortless\w*|seamless\w*|easily|virtually)\b"
# A number with a unit in which something was measured. Bits, tokens and sizes of heads name things and are free.
MEASURED = r"\d(?:\s?%|\s?(?:x|×|times)\b|\s?ms\b|\s?[MGK]i?B\b|\s?tokens/s|\s?GB/s)|KL (?:of )?\d"


# --- sources -------------------------------------------------------------------------------------

def evidence():
    return report.Evidence(report.Results(ROOT / "eval/results"))


def bench_row(file, **wanted):
    """The row with these members; the last one if there are several."""
    found = None
    for line in (ROOT / "docs/bench" / file).read_text().splitlines():
        row = json.loads(line)
        if all(row.get(k) == v for k, v in wanted.items()):
            found = row
    if not found:
        raise SystemExit(f"pages: {file} has no row {wanted}")
    return found


# --- tables --------------------------------------------------------------------------------------

# cache in end-to-end.jsonl: (what the table calls it, cache in eval/results)
CACHES = {
    "stock f16": ("llama.cpp, f16", None),
    "stock q8_0": ("llama.cpp, `-ctk q8_0 -ctv q8_0`", "stock q8_0"),
    "stock q4_0": ("llama.cpp, `-ctk q4_0 -ctv q4_0`", "stock q4_0"),
    "Quire f16": ("Quire, f16 (`--kv declared`)", None),
    "Quire safe": ("**Quire `safe`** (r8/r8)", "r8"),
    "Quire balanced": ("**Quire `balanced`** (r6/r4)", "r6/r4"),
    "Quire small, profile": ("**Quire `small`**, profile (c:r4/r3)", "c:r4/r3"),
}


def decode_speeds(rows, model, cache, depths):
    return " · ".join(end_to_end.speed(rows.get((model, cache, d, "decode"))) for d in depths)


def mib(rows, model, cache, depth):
    return f"{rows[model, cache, depth, 'decode']['kv_bytes'] / (1 << 20):.0f} MiB"


def end_to_end_table():
    rows, e = end_to_end.rows_of(ROWS), evidence()
    out = ["| KV cache | SmolLM2-135M: memory, full context | tokens/s at 0 · 8K | KL | same token | heads of 128: memory at 32K | tokens/s at 0 · 8K · 32K |",
           "|---|---:|---:|---:|---:|---:|---:|"]
    for cache, (title, measured) in CACHES.items():
        f = e.divergence(report.SMOL, measured) if measured else None
        kl = f"{f['kld']:.2g}" if f else "0"
        same = f"{f['top1']:.1f} %" if f else "100 %"
        out.append(f"| {title} | {mib(rows, 'smollm2-135m', cache, 8192)} | {decode_speeds(rows, 'smollm2-135m', cache, (0, 8192))} | "
                   f"{kl} | {same} | {mib(rows, 'made', cache, 32768)} | {decode_speeds(rows, 'made', cache, (0, 8192, 32768))} |")
    return out


def presets():
    return report.presets_table()


def presets_in_short():
    """Presets, one line each: what the first page has room for."""
    e = evidence()
    chosen = [("llama.cpp's q8_0", "stock q8_0"), ("llama.cpp's q4_0", "stock q4_0")]
    for name, (without, with_profile) in report.PRESETS.items():
        chosen += [(f"`{name}`", without), (f"`{name}`, profile", with_profile)]
    names = " · ".join(report.NAMES.values())
    out = [f"| policy | K/V | of the memory of f16 | same token: {names} | greedy texts equal, of 20: SmolLM2-135M · Gemma3-270M |",
           "|---|---|---:|---|---|"]
    for title, policy in chosen:
        cache = report.measured_name(policy)
        found = [e.divergence(m, cache) for m in report.NAMES]
        same = " · ".join(f"{f['top1']:.1f} %" if f else "—" for f in found)
        ends = [report.greedy_ends(e, m, cache) for m in report.SMALL]
        equal = " · ".join(str(sum(x == n for x in part)) if part else "—" for part, n in (end or (None, 0) for end in ends))
        share = 100 * report.plain_bits(policy, 128) / 16
        out.append(f"| {title} | {policy.removeprefix('stock ')} | {share:.0f} % | {same} | {equal} |")
    return out


def attention():
    """Decode of attention alone, from the processor's cache and from memory."""
    out = ["| cache | bits | from the processor's cache | from memory | ggml, f16, from its cache |", "|---|---:|---:|---:|---:|"]
    ggml = bench_row("decode.jsonl", impl="ggml", k="f16", v="f16", context=32768)
    for codec, title in (("f16", "f16"), ("r8", "`safe` (r8/r8)"), ("r4", "r4/r4")):
        warm = bench_row("decode.jsonl", impl="quire", k=codec, v=codec, context=32768)
        cold = bench_row("cold.jsonl", impl="quire", k=codec, v=codec, context=32768)
        out.append(f"| {title} | {16 if codec == 'f16' else float(codec[1:]) + 0.125:g} | {warm['ms']:.2f} ms | {cold['ms']:.2f} ms | "
                   f"{ggml['ms']:.1f} ms |")
    return out


def server_table(model):
    return lambda: end_to_end.tables(ROWS)[end_to_end.TITLES[model]]


TABLES = {"server made": server_table("made"), "server smollm2-135m": server_table("smollm2-135m"), "end to end": end_to_end_table, "presets": presets, "presets in short": presets_in_short, "attention": attention}


# --- figures in sentences ------------------------------------------------------------------------

def figures():
    rows = end_to_end.rows_of(ROWS)
    ms = lambda model, cache, depth, op="decode": rows[model, cache, depth, op]["ms"]
    kv = lambda model, cache, depth: rows[model, cache, depth, "decode"]["kv_bytes"]
    smol = "smollm2-135m"
    return {
        "safe memory": f"{100 * kv(smol, 'Quire safe', 8192) / kv(smol, 'stock f16', 8192):.0f} %",
        "safe speed": f"{ms(smol, 'stock f16', 8192) / ms(smol, 'Quire safe', 8192):.1f} times",
        "attention share": f"{100 * (1 - ms('made', 'stock f16', 0) / ms('made', 'stock f16', 32768)):.0f} %",
        "q8_0 memory": f"{100 * kv(smol, 'Quire safe', 8192) / kv(smol, 'stock q8_0', 8192):.0f} %",
        "q8_0 speed 8K": f"{ms(smol, 'stock q8_0', 8192) / ms(smol, 'Quire safe', 8192):.1f} times",
        "f16 speed 8K": f"{ms(smol, 'stock f16', 8192) / ms(smol, 'Quire f16', 8192):.1f} times",
    }


# --- pages ---------------------------------------------------------------------------------------

def fill(text):
    values = figures()

    def table(match):
        return f"<!-- made: {match[1]} -->\n" + "\n".join(TABLES[match[1]]()) + "\n<!-- /made -->"

    def figure(match):
        return f"<!--={match[1]}-->{values[match[1]]}<!--/-->"

    text = re.sub(r"<!-- made: ([^>]*?) -->\n.*?<!-- /made -->", table, text, flags=re.S)
    return re.sub(r"<!--=([^>]*?)-->.*?<!--/-->", figure, text, flags=re.S)


def prose(text):
    """The text without tables and figures that are made, code and links, lines kept."""
    blank = lambda m: "\n" * m[0].count("\n")
    for pattern in (r"<!-- made: .*?<!-- /made -->", r"<!--=.*?<!--/-->", r"^```.*?^```$", r"`[^`\n]*`", r"\]\([^)]*\)"):
        text = re.sub(pattern, blank, text, flags=re.S | re.M)
    return text


def faults(name, text):
    for number, line in enumerate(prose(text).splitlines(), 1):
        for pattern, why in ((PRAISE, "a word in place of a figure"), (MEASURED, "a figure that nothing makes")):
            for found in re.finditer(pattern, line, re.I):
                yield f"{name}:{number}: {why}: {found[0]!r} in {line.strip()[:80]!r}"


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    wrong = []
    for name in PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new = fill(text)
        if check and new != text:
            wrong.append(f"{name} is not what was measured: python3 eval/pages.py writes it anew")
        elif new != text:
            path.write_text(new, encoding="utf-8")
        if name in STRICT:
            wrong += faults(name, new)
    print("\n".join(wrong) if wrong else f"note: {len(PAGES)} pages")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

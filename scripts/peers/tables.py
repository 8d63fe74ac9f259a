# SPDX-License-Identifier: MIT
"""The page docs/bench/peers.md from the rows of bench-peers."""
import platform
from pathlib import Path

IMPLS = {"quire": "Quire", "openvino": "OpenVINO", "ik": "ik_llama.cpp", "ggml": "ggml", "vllm": "vLLM"}
BITS = ["16", "8", "8/4", "4"]
KINDS = {"cascade-lake": "Cascade Lake kind: AVX-512 with VNNI, without VBMI and AMX", "sapphire-rapids": "Sapphire Rapids kind: AVX-512 with VBMI, and AMX",
         "ice-lake": "Ice Lake kind: AVX-512 with VBMI, without AMX", "avx2": "AVX2 without AVX-512"}
EXPECTED = ["cascade-lake", "sapphire-rapids"]  # named even if there are no rows
GROUPS = {"native": "Everything that the processor has", "avx2": "AVX2 alone"}

HEAD = """# Quire beside other implementations

Made by `scripts/bench-peers`. The columns are explained in [measuring.md](../measuring.md#columns-of-the-tables), `a4g64`, `r4` and so on in
[codec names](../codecs.md#how-to-read-a-codec-name).

## Limits

- One layer, 8 KV heads, 32 query heads of 128, one sequence, random rows. Scores have a deviation of 2. No model was run.
- A time is the minimum of the calls, in ms. The KV cache is in the processor's cache as far as it fits: calls that are not counted come before.
- The error in brackets is the largest of the compared rows of the output, and includes quantization: the norm of the difference to float64 over
  the rows **before encoding**, divided by the norm of the row. Random rows are the worst case for codecs; see [fidelity](../fidelity.md) for models.
- A call of OpenVINO also writes the rows of its queries, the others' do not. What writing costs Quire is in a table of its own.
- OpenVINO and vLLM are called from Python, which is a part of their times: an operator that does almost nothing took 0.02 ms in OpenVINO and 0.005 ms in torch. The
  others are called from C.
- OpenVINO and vLLM have no setting that holds them to AVX2. They are not in the tables of AVX2.
- The build of ik_llama.cpp has its kernels for head size 128 only.
- What takes about a second or longer was called only one to a few times (`runs` in the rows).
- The calls had real-time priority on a machine that also did other work, and that shares its cache and memory with other machines: the same configuration took
  up to 1.5 times as long in another run. Only ratios within one column are reliable: its rows were measured in turn in one run.

## How it measures

Every implementation gets the same rows from a file and fills its own cache. Its process stays; a round asks every configuration in turn for one
counted call, after two that are not counted (one in prefill). Configurations of Quire and of the others alternate. One thread per
processor: OpenVINO pins its threads by itself, OMP_PROC_BIND pins those of ggml, ik_llama.cpp and vLLM, and Quire's program pins those of `quire_threads`.
Caches of OpenVINO, ggml and ik_llama.cpp are on huge pages. Quire's rows are in a sequence of a pool; the measured call is `quire_step_attend()`.

```
scripts/bench-peers --ik DIR --vllm install --isa native,avx2 --out docs/bench/peers-KIND.jsonl
scripts/bench-peers --table docs/bench/peers-*.jsonl >docs/bench/peers.md
```

DIR is a clone of ik_llama.cpp, KIND a kind of processor. The machine must be idle, or the command started with a real-time priority (`chrt -f 10 taskset -c 0,1 scripts/bench-peers ...`).
"""


def processor():
    """The processor's name, and its kind: what decides the kernels."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    values = {}
    for line in lines:
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    flags = values.get("flags", "").split()
    kind = platform.machine()
    for name, flag in (("sapphire-rapids", "amx_int8"), ("ice-lake", "avx512_vbmi"), ("ice-lake", "avx512vbmi"),
                       ("cascade-lake", "avx512_vnni"), ("avx2", "avx2")):
        if flag in flags:
            kind = name
            break
    return values.get("model name", kind), kind


def size(context):
    return f"{context // 1024}K" if context % 1024 == 0 else str(context)


def point_name(row):
    return f"{size(row['context'])}" if row["op"] == "decode" else f"{row['queries']} x {size(row['context'])}"


def points_of(rows, op):
    return sorted({(r["context"], r["queries"]) for r in rows if r["op"] == op})


def number(value):
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def find(rows, **wanted):
    return [r for r in rows if all(r[key] == value for key, value in wanted.items())]


def table(header, lines):
    return "\n".join(["| " + " | ".join(header) + " |", "|---|" + "---|" * (len(header) - 1), *("| " + " | ".join(x) + " |" for x in lines)]) + "\n"


def times(rows, op):
    """A line per configuration, a column per point: the time, and the error beside it."""
    points = points_of(rows, op)
    names = [point_name(find(rows, op=op, context=c, queries=q)[0]) for c, q in points]
    lines = []
    for bits in BITS:
        for impl in IMPLS:
            for config in dict.fromkeys(r["config"] for r in rows if r["impl"] == impl and r["bits"] == bits and r["op"] == op):
                own = find(rows, impl=impl, config=config, op=op)
                cells = []
                for context, queries in points:
                    got = find(own, context=context, queries=queries)
                    cells.append(f"{number(got[0]['ms'])} ({got[0]['err']:.1e})" if got else "not measured")
                lines.append([bits, IMPLS[impl], f"`{config}`", own[0]["isa"], f"{own[0]['bytes'] / own[0]['tokens']:.0f}", *cells])
    return table(["bits", "implementation", "cache", "isa", "bytes per token", *names], lines)


def ratios(rows):
    """The fastest of a width divided by Quire's fastest of that width, for each other implementation."""
    points = [(op, *p) for op in ("decode", "prefill") for p in points_of(rows, op)]
    names = [f"{op} {point_name(find(rows, op=op, context=c, queries=q)[0])}" for op, c, q in points]

    def best(impl, bits, op, context, queries):
        return min((r["ms"] for r in find(rows, impl=impl, bits=bits, op=op, context=context, queries=queries)), default=None)

    lines = []
    for bits in BITS:
        for label, impl, other in [*((IMPLS[x], x, bits) for x in IMPLS if x != "quire"), ("ggml f16", "ggml", "16")]:
            if label == "ggml f16" and bits == "16":
                continue
            pairs = [(best("quire", bits, *p), best(impl, other, *p)) for p in points]
            if any(b for _, b in pairs):
                lines.append([bits, label, *(f"{b / a:.2f}x" if a and b else "-" for a, b in pairs)])
    return table(["bits of Quire", "compared with", *names], lines)


def appends(rows):
    """What writing the rows of the queries takes, where it was measured."""
    points = [(op, *points_of(rows, op)[-1]) for op in ("decode", "prefill") if points_of(rows, op)]
    lines = []
    for impl in IMPLS:
        own = [r for r in rows if r["impl"] == impl]
        for config in dict.fromkeys(r["config"] for r in own):
            cells = []
            for op, context, queries in points:
                got = [r["append_ms"] for r in find(own, config=config, op=op, context=context, queries=queries) if "append_ms" in r]
                cells.append(f"{1000 * got[0]:.0f}" if got else "-")
            if any(x != "-" for x in cells):
                lines.append([IMPLS[impl], f"`{config}`", *cells])
    return table(["implementation", "cache", *(f"{q} token{'s' if q > 1 else ''}, us" for _, _, q in points)], lines)


def section(rows, kind, group):
    versions = ", ".join(sorted({f"{IMPLS[r['impl']]} {r['version']}" for r in rows if r["version"]}))
    text = f"\n### {GROUPS.get(group, group)}\n\n{rows[0]['cpu']}, {rows[0]['threads']} threads. {versions}.\n"
    missing = [IMPLS[x] for x in IMPLS if not find(rows, impl=x)]
    if missing:
        text += f"Not measured: {', '.join(missing)}.\n"
    text += f"\nTimes faster than others: the fastest of the same width, divided by the fastest of Quire.\n\n{ratios(rows)}"
    for op, title in (("decode", "Decode, ms (error), by tokens in the cache"), ("prefill", "Prefill, ms (error), queries x tokens in the cache")):
        if points_of(rows, op):
            text += f"\n{title}:\n\n{times(rows, op)}"
    if any("append_ms" in r for r in rows):
        text += f"\nWriting the rows of K and V of one layer, with beginning and discarding a step:\n\n{appends(rows)}"
    return text


def page(rows):
    text = HEAD
    kinds = [*KINDS, *sorted({r["kind"] for r in rows} - set(KINDS))]
    for kind in kinds:
        own = find(rows, kind=kind)
        if own or kind in EXPECTED:
            text += f"\n## {KINDS.get(kind, kind)}\n"
        if not own and kind in EXPECTED:
            text += "\nNot measured.\n"
        for group in dict.fromkeys(r["group"] for r in own):
            text += section(find(own, group=group), kind, group)
    return text

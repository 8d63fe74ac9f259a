# SPDX-License-Identifier: MIT
"""Measures llama-server end to end, stock and with Quire: memory of the cache and tokens per second, by tokens in the cache.

    scripts/bench-end-to-end [--models smollm2-135m,made] [--depths 0,8192,32768] [--caches NAME,...] [--rounds 7]
                             [--decode 48] [--prefill 256] [--llama DIR] [--json FILE]
    scripts/bench-end-to-end --tables [--json FILE]      prints the Markdown tables from the rows of FILE
    scripts/bench-end-to-end --plot OUT.svg              draws decode speed against tokens in the cache

For every model and depth, the prompt is computed once per cache and kept as a slot file. Then, --rounds times and in alternating
order, a server is started for each cache, restores that slot and generates --decode tokens; its own timings count. The slot files
of stock's caches are computed with Quire in the same declared type, because stock needs hours for the longest of them; the bytes
in the file are the same (tests/llama/faithful.py). In the first --prefill-rounds rounds each server then computes --prefill further
tokens of prompt, up to a depth of --prefill-depth.

Memory is what holds K and V: for Quire the resident bytes of its pages, for stock the size it allocates and fills at the start.
A depth that a model was not trained for is left out; at the depth that it was trained for, --spare tokens are left for what is generated. `made` is scripts/make-model: 2 layers, 8 KV and 32 query heads of 128, random weights;
beyond 8,192 tokens its slot holds the rows of the first 8,192 again and again, because speed and memory do not depend on what rows say.
Rows are appended to --json (default docs/bench/end-to-end.jsonl).
"""
import argparse
import functools
import json
import os
import re
import statistics
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "eval"))
import llama  # noqa: E402
import measure as measured  # noqa: E402
import svg  # noqa: E402

# name in the tables: (with the device, declared type, policy, needs a profile)
CACHES = {
    "stock f16": (False, "f16", None, False),
    "stock q8_0": (False, "q8_0", None, False),
    "stock q4_0": (False, "q4_0", None, False),
    "Quire f16": (True, "f16", None, False),
    "Quire safe": (True, "f16", "safe", False),
    "Quire balanced": (True, "f16", "balanced", False),
    "Quire small, profile": (True, "f16", "small", True),
}
MADE_TOKENS = 8192  # computed; longer prompts of the made model repeat them
TITLES = {"smollm2-135m": "SmolLM2-135M", "made": "made model"}


def scratch():
    return measured.scratch("end-to-end")


def model_path(name):
    if name != "made":
        return llama.model(name)
    path = scratch() / "made.gguf"
    if not path.exists():
        subprocess.run([str(ROOT / "scripts/make-model"), f"{path}.part"], check=True)
        os.replace(f"{path}.part", path)
    return str(path)


@functools.cache
def trained_for(path):
    plan = subprocess.run([str(ROOT / "build/release/bin/quire"), "plan", "--json", path], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(plan.stdout)["tokens"]


def profile_of(name, path, length):
    """Recorded from the calibration text, for contexts of that length."""
    out = scratch() / f"{name}-{length}.quire-profile"
    if not out.exists():
        env = {"QUIRE_PROFILE_RECORD": f"{out}.part", "QUIRE_PROFILE_LENGTH": str(length)}
        llama.run("llama-perplexity", ["-m", path, "-f", ROOT / "eval/text/calibrate.txt", "-c", 2048, "--chunks", 2, "-t", 2,
                                       "-fa", "on"], True, env, timeout=3600)
        os.replace(f"{out}.part", out)
    return str(out)


def server(name, path, depth, cache, device, spare):
    _, declared, policy, wants_profile = CACHES[cache]
    env = {}
    if policy:
        env["QUIRE_KV"] = policy
    if wants_profile:
        env["QUIRE_PROFILE"] = profile_of(name, path, min(trained_for(path), 32768))
    slots = scratch() / "slots"
    slots.mkdir(exist_ok=True)
    args = ["-c", min(depth + spare, trained_for(path)), "-np", "1", "-ctk", declared, "-ctv", declared, "-fa", "on", "--cache-ram", "0", "-b", "2048"]
    return llama.Server(path, *args, plugin=device, env=env or None, slots=slots)


def prompt_of(s, name, n):
    if name == "made":
        return [3 + i % MADE_TOKENS * 7 % 250 for i in range(n)]
    text = llama.TEXT_FILE.read_text(encoding="utf-8")
    tokens = s.tokens(text)
    while len(tokens) < n:
        tokens += tokens[1:]
    return tokens[:n]


def filled(path, depth, spare):
    """Tokens of the prompt: the depth, but something must be left of the trained context."""
    return min(depth, trained_for(path) - spare)


def kv_bytes(s, tokens, cells):
    """What holds K and V of this server. Stock allocates and fills all its cells: those of the prompt count."""
    if s.with_plugin:
        return s.resident_kv()
    allocated = sum(float(x) for x in re.findall(r"KV buffer size =\s+([\d.]+) MiB", s.log())) * (1 << 20)
    return round(allocated * max(tokens, 256) / cells)


def slot_name(name, depth, cache):
    """Caches that hold the same bytes share a file."""
    _, declared, policy, _ = CACHES[cache]
    return f"{name}-{depth}-{policy or declared}.bin"


def repeat_slot(path, out, times):
    """A slot file that holds the cells of another one several times over, at the positions that follow."""
    data = memoryview(path.read_bytes())
    magic, version, n_words = struct.unpack_from("<III", data)
    words = struct.unpack_from(f"<{n_words}I", data, 12)  # a mark, 1, the number of tokens, the tokens, 0
    n = words[2]
    tokens = words[3:3 + n]
    new = [*words[:2], n * times, *tokens * times, *words[3 + n:]]
    at = 12 + 4 * n_words
    n_streams, n_cells = struct.unpack_from("<II", data, at)
    cells = struct.unpack_from(f"<{3 * n}I", data, at + 8)  # position, number of sequences, sequence
    head = 16 if version >= 4 else 8
    if magic != 0x67677371 or n_streams != 1 or n_cells != n or set(cells[1::3]) != {1}:
        raise llama.Broken(f"{path} is not a slot of one sequence, or of an unknown form")
    at += 8 + 12 * n
    with open(out, "wb") as f:
        f.write(struct.pack(f"<III{len(new)}III", magic, version, len(new), *new, 1, n * times))
        f.write(struct.pack(f"<{3 * n * times}I", *(x for i in range(n * times) for x in (i, 1, 0))))
        f.write(data[at:at + head])
        at += head
        while at < len(data):  # K of each layer, then V: type, bytes of a row, rows
            (row,) = struct.unpack_from("<Q", data, at + 4)
            f.write(data[at:at + 12])
            for _ in range(times):
                f.write(data[at + 12:at + 12 + n * row])
            at += 12 + n * row


def prepare(name, path, depth, cache, a):
    """Computes the prompt with the device and keeps the slot, unless it is there."""
    file = slot_name(name, depth, cache)
    if not depth or (scratch() / "slots" / file).exists():
        return
    if name == "made" and depth > MADE_TOKENS:
        prepare(name, path, MADE_TOKENS, cache, a)
        slots = scratch() / "slots"
        repeat_slot(slots / slot_name(name, MADE_TOKENS, cache), slots / file, depth // MADE_TOKENS)
        return
    with server(name, path, depth, cache, True, a.spare) as s:
        s.patience = 7200
        answer = s.completion(prompt_of(s, name, filled(path, depth, a.spare)), n=1)
        s.save(0, file)
        print(f"# {name} {depth} {cache}: prompt computed at {answer.timings['prompt_per_second']:.0f} tokens/s",
              file=sys.stderr, flush=True)


def once(name, path, depth, cache, a, prefill_too):
    """(ms per generated token, ms per token of prompt or None, bytes of KV)"""
    with server(name, path, depth, cache, CACHES[cache][0], a.spare) as s:
        s.patience = 7200
        prompt = prompt_of(s, name, max(filled(path, depth, a.spare), 16))
        if depth:
            s.restore(0, slot_name(name, depth, cache))
        answer = s.completion(prompt, n=a.decode, ignore_eos=True)
        if answer.timings["prompt_n"] > 64:
            raise llama.Broken(f"{cache}: {answer.timings['prompt_n']} tokens of the prompt were computed again")
        decode = answer.timings["predicted_ms"] / answer.timings["predicted_n"]
        used = kv_bytes(s, filled(path, depth, a.spare), min(depth + a.spare, trained_for(path)))
        prefill = None
        if prefill_too:
            more = prompt_of(s, name, len(prompt) + a.prefill)
            answer = s.completion(more, n=1)
            prefill = answer.timings["prompt_ms"] / answer.timings["prompt_n"]
    return decode, prefill, used


def chosen(text):
    """Names of caches, separated by commas; one of them has a comma itself."""
    found = re.findall("|".join(map(re.escape, CACHES)), text)
    if ",".join(found) != text:
        raise llama.Broken(f"--caches takes some of: {', '.join(map(repr, CACHES))}, separated by commas without spaces")
    return found or list(CACHES)


def measure(a):
    host = subprocess.run([str(llama.programs() / "llama-server"), "--version"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout
    version = re.search(r"^version: (.*)$", host, re.M)[1]
    isa = subprocess.run([str(ROOT / "build/release/bin/quire"), "--version"], stdout=subprocess.PIPE, text=True).stdout
    cpu = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1]
    for name in a.models.split(","):
        path = model_path(name)
        for depth in map(int, a.depths.split(",")):
            if depth > trained_for(path):
                print(f"# {name} is trained for {trained_for(path)} tokens: {depth} left out", file=sys.stderr)
                continue
            names = chosen(a.caches)
            for cache in names:
                prepare(name, path, depth, cache, a)
            samples = {cache: [] for cache in names}
            for i in range(a.rounds):
                for cache in names if i % 2 == 0 else names[::-1]:
                    samples[cache].append(once(name, path, depth, cache, a, depth <= a.prefill_depth and i < a.prefill_rounds))
            for cache in names:
                decode, prefill, used = zip(*samples[cache])
                common = {"impl": "quire" if CACHES[cache][0] else "llama.cpp", "model": name, "cache": cache, "context": depth,
                          "tokens": filled(path, depth, a.spare),
                          "threads": int(llama.threads), "runs": a.rounds, "kv_bytes": max(used), "host": version,
                          "isa": " ".join(isa.split()), "cpu": cpu}
                rows = [{**common, "op": "decode", "ms": round(statistics.median(decode), 4), "best_ms": round(min(decode), 4)}]
                prefill = [x for x in prefill if x]
                if prefill:
                    rows.append({**common, "op": "prefill", "queries": a.prefill, "runs": len(prefill),
                                 "ms": round(statistics.median(prefill), 4), "best_ms": round(min(prefill), 4)})
                with open(a.json, "a") as f:
                    f.writelines(json.dumps(row) + "\n" for row in rows)
                print(f"{name} {depth} {cache}: " + ", ".join(f"{r['op']} {1000 / r['ms']:.1f} tokens/s" for r in rows)
                      + f", KV {max(used) / (1 << 20):.1f} MiB", flush=True)


def rows_of(path):
    """The last row of each model, cache, depth and kind of work."""
    rows = {}
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        rows[row["model"], row["cache"], row["context"], row["op"]] = row
    return rows


def speed(row):
    if not row:
        return "—"
    value = 1000 / row["ms"]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def tables(path):
    """One Markdown table per model: {title: lines}."""
    rows, out = rows_of(path), {}
    for name, title in TITLES.items():
        depths = sorted({d for m, _, d, _ in rows if m == name})
        if not depths:
            continue
        top = depths[-1]
        full = max(r["tokens"] for (m, _, _, _), r in rows.items() if m == name)
        head = ["cache", f"KV MiB at {full:,} tokens"]
        head += [f"tokens/s, {d // 1024}K in the cache" if d else "tokens/s, empty cache" for d in depths]
        computed = [d for d in depths if (name, "stock f16", d, "prefill") in rows]
        head += [f"prompt tokens/s at {d // 1024}K" if d else "prompt tokens/s, empty cache" for d in computed]
        lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
        for cache in CACHES:
            if (name, cache, top, "decode") not in rows:
                continue
            cells = [cache, f"{rows[name, cache, top, 'decode']['kv_bytes'] / (1 << 20):.0f}"]
            cells += [speed(rows.get((name, cache, d, "decode"))) for d in depths]
            cells += [speed(rows.get((name, cache, d, "prefill"))) for d in computed]
            lines.append("| " + " | ".join(cells) + " |")
        out[title] = lines
    return out


def plot(path, to):
    rows = rows_of(path)
    p = svg.Plot("llama-server, made model with heads of 128: tokens per second", "tokens in the cache", "tokens per second", log_y=True)
    for cache in CACHES:
        points = sorted((d, 1000 / r["ms"]) for (m, c, d, op), r in rows.items() if m == "made" and c == cache and op == "decode")
        p.add(cache, points, line=True)
    p.save(to)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", default="smollm2-135m,made")
    p.add_argument("--depths", default="0,8192,32768")
    p.add_argument("--caches", default="")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--decode", type=int, default=48)
    p.add_argument("--prefill", type=int, default=256)
    p.add_argument("--prefill-rounds", type=int, default=2, help="rounds that compute more prompt too")
    p.add_argument("--prefill-depth", type=int, default=8192, help="the deepest cache for which they do")
    p.add_argument("--spare", type=int, default=512, help="cells beside those of the prompt")
    p.add_argument("--llama", default=None, help="directory of llama-server (default: Debian's, scripts/get-llama --debian)")
    p.add_argument("--json", default=str(ROOT / "docs/bench/end-to-end.jsonl"))
    p.add_argument("--tables", action="store_true")
    p.add_argument("--plot", default=None)
    a = p.parse_args()
    if a.tables:
        for title, lines in tables(a.json).items():
            print(f"{title}\n\n" + "\n".join(lines) + "\n")
        return
    if a.plot:
        plot(a.json, a.plot)
        return
    os.environ["QUIRE_LLAMA_BIN"] = a.llama or llama._script("get-llama", "--debian")
    measure(a)


if __name__ == "__main__":
    try:
        main()
    except (llama.Absent, llama.Broken) as e:
        sys.exit(f"bench-end-to-end: {e}")

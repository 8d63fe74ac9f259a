#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire serve with models that have sliding windows or recurrent layers: what it keeps of them, whether a restored prompt gives what the first
gave, and whether the answers are those of llama-server alone.

    tests/serve/windows.py --quick            some of llama.cpp's small models
    tests/serve/windows.py                    the same and Gemma3
    tests/serve/windows.py NAME...            these of llama.cpp's small models
    tests/serve/windows.py --all [--write]    all of them; --write: the table of docs/serve-models.md

The small models have random weights, a vocabulary of 128 numbers and 256 tokens of context.
"""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tenants
from sidecar import Sidecar, kit

expect, note, part = kit.expect, kit.note, kit.part
PAGE = kit.ROOT / "docs/serve-models.md"
SOME = ["gemma3-dense", "qwen3next-moe", "lfm2-dense"]
DEVICE, STOCK = (), ("--kv", "none")
# Tokens of a prompt; where the second one parts from it. After the whole pages there are fewer than 32, from which quire serve does not
# learn how fast the server computes: so it does not find that restoring such a small model takes longer.
CONTEXT, N, FORK = 256, 220, 150
WHOLE = (N - 1) // 64 * 64
store = Path(tempfile.mkdtemp(prefix="quire-windows-test."))


def numbers(seed, n, most=127):
    rng = random.Random(seed)
    return [rng.randrange(2, most) for _ in range(n)]


def probs(answer):
    return [[(x["id"], x["logprob"]) for x in p["top_logprobs"]] for p in answer["completion_probabilities"]]


def likely(answer):
    return [p[0][0] for p in probs(answer)]


class Plain:
    """The same server without quire serve, with the flags that matter for rounding."""

    def __init__(self, model, context, *flags):
        self.port = kit.free_port()
        self.process = subprocess.Popen([str(kit.programs() / "llama-server"), "-m", str(model), "-c", str(context), "-np", "1", "--no-kv-unified",
                                         "-sps", "0", "--cache-ram", "0", "--port", str(self.port), "-t", str(kit.threads), *flags],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.text = lambda: ""
        try:
            Sidecar.wait_ready(self, path="/health")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    ask, complete = Sidecar.ask, Sidecar.complete

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def refusal(text, context):
    """Why nothing is kept, as the start said it."""
    for line in text.splitlines():
        longer = re.search(r"prompts longer than its window of (\d+) tokens", line)
        if longer and int(longer[1]) >= context:
            return f"its window of {longer[1]} tokens is longer than the context"
        if "prompts of this server cannot be kept: " in line:
            return line.split("cannot be kept: ", 1)[1]
        if "prompts are no longer restored" in line:
            return "the server reused less than was restored"
    return None


def try_model(model, options, context=CONTEXT, tokens=None, n=N, fork=FORK, flags=()):
    """What two prompts that begin with the same tokens give in a first quire serve and in a second with the same store."""
    tokens = tokens or numbers(3, n)
    other = tokens[:fork] + numbers(4, n - fork)
    runs = []
    folder = Path(tempfile.mkdtemp(dir=store))
    for _ in range(2):
        with Sidecar(folder, *flags, options=(*options, "--min-tokens", "64"), model=model, context=context) as s:
            answers = [s.complete(p, 4, n_probs=5) for p in (tokens, other)]
            s.wait_figure("watched", 2)
            if not refusal(s.text(), context):  # pages are saved when the server is idle
                s.wait_figure("saves", 1, 3)
            runs.append({"answers": answers, "figures": s.figures(), "why": refusal(s.text(), context), "states": "from where others go on" in s.text()})
    shutil.rmtree(folder)
    first, second = runs
    return {"why": second["why"] or first["why"],
            "states": second["states"],
            "cached": [a["timings"]["cache_n"] for a in second["answers"]],
            "restored": second["figures"]["restores"],
            # Pages of the second prompt that the first stored may have been computed in other steps.
            "equal": probs(first["answers"][0]) == probs(second["answers"][0]) and furthest(first["answers"][1], second["answers"][1]) < 1e-4,
            "likely": [likely(a) for a in second["answers"]],
            "figures": second["figures"]}


def plain_answers(model, context=CONTEXT, tokens=None, n=N, fork=FORK, cached=(0, 0)):
    """Of llama-server alone, with so many tokens of each prompt in the slot."""
    tokens = tokens or numbers(3, n)
    answers = []
    with Plain(model, context) as s:
        for prompt, warm in zip((tokens, tokens[:fork] + numbers(4, n - fork)), cached):
            if warm:
                s.complete(prompt[:warm], 0, cache_prompt=False)
            answers.append(s.complete(prompt, 4, n_probs=5, cache_prompt=warm > 0))
    return [likely(a) for a in answers]


def keeps(name, path, options):
    found = try_model(path, options)
    plain = plain_answers(path)
    expect(found["figures"]["miscounted"] == 0 and found["figures"]["failed"] == 0, f"{name} {options}: all prompts are answered", str(found))
    expect(found["equal"], f"{name} {options}: a restored prompt gives the same probabilities, bit for bit", str(found))
    if options == STOCK:
        expect(found["likely"] == plain, f"{name}: the answers are those of llama-server alone", f"{found['likely']} {plain}")
    if not found["why"]:
        expect(found["restored"] == 2 and found["cached"] == [WHOLE, WHOLE], f"{name} {options}: both prompts are restored", str(found))
    note(f"{name} {options}: {'not kept: ' + found['why'] if found['why'] else 'restored ' + str(found['cached'])}")
    return found


def small(names):
    models = kit.test_programs() / "models"
    for name in names:
        for options in (STOCK, DEVICE):
            found = keeps(name, models / f"{name}.gguf", options)
            if name == "lfm2-dense":
                expect("beside sliding windows" in (found["why"] or ""), "what cannot be kept is said at the start", str(found))
            else:
                expect(not found["why"], f"{name} is kept", str(found))


def furthest(a, b):
    """Between the log-probabilities of two answers, as long as their texts are the same."""
    most = 0
    for x, y in zip(probs(a), probs(b)):
        most = max([most] + [abs(l - dict(y)[i]) for i, l in x if i in dict(y)])
        if x[0][0] != y[0][0]:
            break
    return most


def parted(name):
    """A prompt that parts from a restored one a little before its end must not use rows that the state lacks. llama-server alone, computing
    in other steps, gives by how much an answer may differ."""
    path = kit.test_programs() / f"models/{name}.gguf"
    tokens, folder = numbers(3, N), Path(tempfile.mkdtemp(dir=store))
    prompts = [tokens[:WHOLE - d] + numbers(10 + d, 40) for d in (1, 2, 3, 30, 63)]
    with Plain(path, CONTEXT) as s:
        wanted = [s.complete(p, 1, n_probs=5, cache_prompt=False) for p in prompts]
    with Plain(path, CONTEXT, "-ub", "32") as s:
        spread = max(furthest(s.complete(p, 1, n_probs=5, cache_prompt=False), w) for p, w in zip(prompts, wanted))
    with Sidecar(folder, options=(*STOCK, "--min-tokens", "64"), model=path, context=CONTEXT) as s:
        s.complete(tokens, 1)
    for prompt, want in zip(prompts, wanted):
        with Sidecar(folder, options=(*STOCK, "--min-tokens", "239"), model=path, context=CONTEXT) as s:
            first = s.complete(tokens, 0)
            got = s.complete(prompt, 1, n_probs=5)
        expect(first["timings"]["cache_n"] == WHOLE and furthest(got, want) <= 4 * spread + 1e-5,
               f"{name}: a prompt that parts from a restored one after {len(prompt) - 40} tokens is computed from true rows",
               f"{got['timings']['cache_n']} reused, {furthest(got, want)} apart, spread {spread}")


def goes_on(name):
    """A conversation: the next prompt begins with the one before."""
    path, folder = kit.test_programs() / f"models/{name}.gguf", Path(tempfile.mkdtemp(dir=store))
    tokens = numbers(6, 250)
    for prompt, restored in ((tokens[:200], 0), (tokens, WHOLE)):
        with Sidecar(folder, options=(*STOCK, "--min-tokens", "64"), model=path, context=CONTEXT) as s:
            answer = s.complete(prompt, 1)
            found = s.figures()["restores"]
    expect(found == 1 and answer["timings"]["cache_n"] == restored, f"{name}: a conversation goes on after a restart", str(answer["timings"]))


def parting():
    """Two prompts of Gemma3 that begin with the same 650 tokens leave a state there, from which a third goes on."""
    path, folder = kit.model("gemma3-270m"), Path(tempfile.mkdtemp(dir=store))
    common, got = numbers(7, 650, 20000), []
    for seeds in ((1, 2), (3,)):
        with Sidecar(folder, options=STOCK, model=path, context=1024) as s:
            got += [s.complete(common + numbers(30 + i, 320, 20000), 1)["timings"]["cache_n"] for i in seeds]
            figures = s.figures()
    expect(figures["restores"] == 1 and figures["restored_tokens"] == 640 and got[2] == 960, "a third prompt goes on from where two parted",
           f"{got} {figures}")


def other_slot():
    """A state of one slot is restored into another."""
    path = kit.test_programs() / "models/gemma3-dense.gguf"
    prompts, folder = [numbers(20 + i, N) for i in range(3)], Path(tempfile.mkdtemp(dir=store))
    runs = []
    for order in (prompts, prompts[::-1]):
        with Sidecar(folder, "-np", "3", options=(*STOCK, "--min-tokens", "64"), model=path, context=CONTEXT) as s:
            answers = [s.complete(p, 4, n_probs=5) for p in order]
            runs.append({a["id_slot"]: probs(a) for a in answers})
            restored = s.figures()["restores"]
    expect(len(runs[0]) == 3 and restored == 3 and [runs[0][i] for i in range(3)] == [runs[1][2 - i] for i in range(3)],
           "states go from one slot to another", f"{restored} restored")


def whole_windows():
    """With --swa-full slot files lack rows that the server takes as present, so nothing is kept."""
    found = try_model(kit.test_programs() / "models/gemma3-dense.gguf", STOCK, flags=("--swa-full",))
    expect("--swa-full" in (found["why"] or "") and found["restored"] == 0 and found["equal"], "--swa-full: it runs, and nothing is kept", str(found))


def apart():
    """States of one tenant are not restored for another, and nothing that a state leaves in the only slot is reused."""
    path, prompt = kit.test_programs() / "models/qwen3next-moe.gguf", numbers(8, N)
    for name in ("ann", "bob"):
        tenants.write(tenants.folder / f"{name}.key", os.urandom(32))
    options = (*STOCK, "--tenants", str(tenants.write_tenants(*tenants.KEYS)), "--min-tokens", "64")
    for restored in (0, WHOLE):
        with tenants.Tenants(tenants.folder / "states", "-np", "1", options=options, model=path, context=CONTEXT) as s:
            for asked, name in enumerate(("ann", "bob"), 1):
                cached, f = s.reused(name, prompt), s.figures()
                expect(cached == WHOLE and f["restored_tokens"] == asked * restored and f["computed_tokens"] == asked * (N - restored) and f["warm_tokens"] == 0,
                       f"{name} {'gets its own state' if restored else 'computes all'}", f"{cached} {f}")
            expect(s.reused("sk-unknown", prompt) == 0 and s.figures()["restores"] == asked * bool(restored), "a stranger reuses nothing", str(s.figures()))
            expect(s.figures()["miscounted"] == 0, "counts are right", str(s.figures()))


def messages():
    """Requests that cannot name their slot: Gemma3, three conversations in three slots of four, and after a restart."""
    folder = Path(tempfile.mkdtemp(dir=store))
    texts = [" ".join(str(x) for x in numbers(40 + i, 300, 999)) for i in range(3)]
    for turn in range(2):
        with Sidecar(folder, "-np", "4", options=STOCK, model="gemma3-270m", context=2048) as s:
            for i in (0, 1, 2, 1, 0, 2):
                status, _, answer = s.ask("POST", "/v1/messages", {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": texts[i]}]})
                u = json.loads(answer)["usage"]
                n, cached = u["input_tokens"] + u["cache_read_input_tokens"], u["cache_read_input_tokens"]
                expect(status == 200 and n > 600 and cached >= (n - 1) // 64 * 64, f"conversation {i} has its slot", f"{cached} of {n}")
            f = s.figures()
            expect(f["watched"] == 6 and f["unsteered"] == f["miscounted"] == f["restores_short"] == 0 and f["restores"] >= 3 * turn and
                   f["computed_tokens"] >= (1 - turn) * 1800, "the server took the slots that were meant", str(f))


def gemma():
    """Windows of 512 tokens, a real vocabulary."""
    for options in (STOCK, DEVICE):
        path = kit.model("gemma3-270m")
        tokens = numbers(5, 760, 20000)
        found = try_model(path, options, context=1024, tokens=tokens, n=760, fork=650)
        expect(not found["why"] and found["cached"] == [704, 704] and found["restored"] == 2, f"Gemma3 {options}: both prompts are restored", str(found))
        expect(found["equal"], f"Gemma3 {options}: the same probabilities, bit for bit", str(found))


# --- all ------------------------------------------------------------------------------------------

def one_row(programs, name, path):
    if not path.exists():
        subprocess.run([str(programs / "matrix"), "--save", str(path.parent), name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if not path.exists():
        return [name, "", "not made", "not made"]
    row = [name]
    try:
        plain = plain_answers(path)
    except kit.Broken:
        plain = None
    for options in (STOCK, DEVICE):
        try:
            found = try_model(path, options)
        except kit.Broken as e:
            row += ["" for _ in range(options == STOCK)] + ["does not run, as without quire serve" if plain is None else "FAILED"]
            expect(plain is None, f"{name} {options}: it runs as without quire serve", str(e)[-600:])
            continue
        kept = found["states"] and not found["why"]
        expect(found["equal"] or not kept, f"{name} {options}: the same probabilities, bit for bit", str(found))
        expect(found["cached"] == [WHOLE, WHOLE] or not kept, f"{name} {options}: both prompts are restored", str(found))
        row.append(found["why"] or ("states" if kept else "pages"))
        if options == STOCK:
            same = "the same" if found["likely"] == plain else None
            if plain and not same and found["likely"] == plain_answers(path, cached=found["cached"]):
                same = "the same as of its own warm slot, which are not those of an empty one"
            expect(same or plain is None, f"{name}: the answers are those of llama-server alone", f"{found['likely']} {plain}")
            row.insert(1, same or "other")
    note(" | ".join(row))
    return row


def every(write):
    programs = kit.test_programs()
    folder = Path(tempfile.mkdtemp(dir=store))
    rows = []
    for header in sorted((programs / "headers").glob("*.gguf")):
        rows.append(one_row(programs, header.stem, folder / header.name))
        (folder / header.name).unlink(missing_ok=True)
    if write:
        lines = ["| model | answers against llama-server alone | kept, `--kv none` | kept, with the device |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(r) + " |" for r in rows]
        head = PAGE.read_text().split("<!-- table -->")[0] if PAGE.exists() else "# Models of quire serve\n\n"
        PAGE.write_text(head + "<!-- table -->\n" + "\n".join(lines) + "\n")


def run():
    names = [a for a in given if not a.startswith("-")]
    try:
        if "--all" in given:
            part(every, "--write" in given)
            return
        part(small, names or SOME)
        if not names:
            part(whole_windows)
            part(other_slot)
            part(goes_on, "qwen3next-moe")
            part(parted, "gemma3-dense")
            part(apart)
        if not names and not kit.quick:
            part(gemma)
            part(parting)
            part(messages)
    finally:
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(tenants.folder, ignore_errors=True)


if __name__ == "__main__":
    given = [a for a in sys.argv[1:] if a != "--quick"]
    sys.argv[1:] = [a for a in sys.argv[1:] if a == "--quick"]
    sys.exit(kit.main(run))

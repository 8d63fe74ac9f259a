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
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sidecar import Sidecar, kit

expect, note, part = kit.expect, kit.note, kit.part
PAGE = kit.ROOT / "docs/serve-models.md"
SOME = ["gemma3-dense", "qwen3next-moe", "lfm2-dense"]
DEVICE, STOCK = (), ("--kv", "none")
CONTEXT, N, FORK = 256, 240, 150  # tokens of a prompt; where the second one parts from it
WHOLE = (N - 1) // 64 * 64
store = Path(tempfile.mkdtemp(prefix="quire-serve-test."))


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


def refusal(text):
    """Why nothing is kept, as the start said it."""
    for line in text.splitlines():
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
            if not refusal(s.text()):
                s.wait_figure("saves", 1, 3)
            runs.append({"answers": answers, "figures": s.figures(), "why": refusal(s.text())})
    shutil.rmtree(folder)
    first, second = runs
    return {"why": second["why"] or first["why"],
            "cached": [a["timings"]["cache_n"] for a in second["answers"]],
            "restored": second["figures"]["restores"],
            "equal": [probs(a) for a in first["answers"]] == [probs(a) for a in second["answers"]],
            "likely": [likely(a) for a in second["answers"]],
            "figures": second["figures"]}


def plain_answers(model, context=CONTEXT, tokens=None, n=N, fork=FORK, flags=()):
    """Of llama-server alone: computed at once, and after the whole pages had been computed."""
    tokens = tokens or numbers(3, n)
    with Plain(model, context, *flags) as s:
        at_once = [s.complete(p, 4, n_probs=5, cache_prompt=False) for p in (tokens, tokens[:fork] + numbers(4, n - fork))]
    return [likely(a) for a in at_once]


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


def whole_windows():
    """With --swa-full slot files lack rows that the server takes as present, so nothing is kept."""
    found = try_model(kit.test_programs() / "models/gemma3-dense.gguf", STOCK, flags=("--swa-full",))
    expect("--swa-full" in (found["why"] or "") and found["restored"] == 0 and found["equal"], "--swa-full: it runs, and nothing is kept", str(found))


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
        return [name, "llama.cpp does not make it", "", ""]
    row = [name]
    try:
        plain = plain_answers(path)
    except kit.Broken:
        plain = None
    for options in (STOCK, DEVICE):
        try:
            found = try_model(path, options)
        except kit.Broken as e:
            row.append("does not run without quire serve either" if plain is None else f"FAILED: {str(e)[-120:]}")
            expect(plain is None, f"{name} {options}: it runs as without quire serve", str(e)[-600:])
            continue
        expect(found["equal"], f"{name} {options}: the same probabilities, bit for bit", str(found))
        row.append(found["why"] or f"{found['cached'][0]}, {found['cached'][1]} of {N}")
        if options == STOCK:
            same = plain is not None and found["likely"] == plain
            expect(same or plain is None, f"{name}: the answers are those of llama-server alone", f"{found['likely']} {plain}")
            row.insert(1, "same" if same else "other" if plain is not None else "none")
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
        lines = ["| model | answers against llama-server alone | restored, `--kv none` | restored, with the device |", "|---|---|---|---|"]
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
        if not names and not kit.quick:
            part(gemma)
    finally:
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    given = [a for a in sys.argv[1:] if a != "--quick"]
    sys.argv[1:] = [a for a in sys.argv[1:] if a == "--quick"]
    sys.exit(kit.main(run))

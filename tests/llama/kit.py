# SPDX-License-Identifier: MIT
"""What the tests of the llama.cpp device share: programs, models, servers, figures, checks.

A test is a script: it prints one line per check (`ok ...` or `FAILED ...`) and exits with 0, 1, or 77 when the
host cannot be had. `--quick` is the short form. What runs llama.cpp, and the environment it takes, is in eval/llama.py;
QUIRE_KEEP=1 keeps logs and files of a test that passed (those of a failed one are always kept).
"""
import math
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "eval"))
from llama import *  # noqa: E402,F403
from llama import ROOT, TEXT_FILE, Absent, Broken, folder, gap, parting, plugin, programs, remove_folder  # noqa: E402

HERE = Path(__file__).resolve().parent
SKIPPED = 77

quick = "--quick" in sys.argv[1:]
_failed = []
_n_checks = 0


# --- checks --------------------------------------------------------------------------------------

def expect(ok, what, detail=""):
    """One check: `detail` is printed only when it fails. Returns ok."""
    global _n_checks
    _n_checks += 1
    if ok:
        print(f"ok {what}", flush=True)
    else:
        _failed.append(what)
        print(f"FAILED {what}" + (f": {detail}" if detail else ""), flush=True)
    return bool(ok)


def fail(what, detail=""):
    return expect(False, what, detail)


def note(text):
    print(f"   {text}", flush=True)


def skip(reason):
    """Ends the test. One that has begun to check cannot be left out any more: its failed checks would not be seen."""
    if _n_checks:
        print(f"FAILED something is missing after {_n_checks} checks: {reason}", flush=True)
        sys.exit(1)
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def part(function, *args, **named):
    """Runs one part of a test. When a program breaks, this part fails and the next one still runs."""
    name = " ".join([function.__name__.replace("_", " ")] + [os.path.basename(str(a)) if str(a).startswith("/") else str(a) for a in args])
    try:
        function(*args, **named)
    except Absent as e:
        skip(e)
    except Broken as e:
        fail(name, str(e))
    except Exception:  # a mistake in the test, or an answer of an unknown form
        traceback.print_exc()
        fail(name, "see the trace on stderr")


def main(run):
    """Runs a test; `run` is called without arguments."""
    unknown = [a for a in sys.argv[1:] if a != "--quick"]
    if unknown:
        sys.exit(f"usage: {sys.argv[0]} [--quick]")
    start = time.monotonic()
    try:
        programs()
        plugin()
    except Absent as e:
        skip(e)
    part(run)
    seconds = time.monotonic() - start
    if _failed or os.environ.get("QUIRE_KEEP"):
        note(f"logs and files are in {folder()}")
    else:
        remove_folder()
    print(f"{len(_failed)} failed, {seconds:.0f} s" if _failed else f"passed, {seconds:.0f} s", flush=True)
    sys.exit(1 if _failed else 0)


# --- models, text --------------------------------------------------------------------------------

def made_model(*args):
    """Path of a model of scripts/make-model, made anew for this test."""
    path = folder() / ("made" + "".join(args) + ".gguf")
    if not path.exists():
        subprocess.run([str(ROOT / "scripts" / "make-model"), str(path), *args], check=True)
    return str(path)


def test_programs():
    """Directory of llama.cpp's own tests and of matrix (scripts/get-llama-tests)."""
    wide = [] if programs().parent.name.find("-avx2-") < 0 else ["--avx2"]
    done = subprocess.run([str(ROOT / "scripts" / "get-llama-tests"), *wide], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        raise Absent("scripts/get-llama-tests gave nothing")
    return Path(done.stdout.strip())


def tool():
    """The command quire."""
    path = os.environ.get("QUIRE_TOOL") or str(ROOT / "build/release/bin/quire")
    if not os.path.exists(path):
        raise Absent(f"no {path}")
    return path


def with_version(version):
    """A folder with a copy of the host's library that says another version."""
    directory = folder() / f"version-{version}"
    directory.mkdir()
    bytes_ = (programs() / "libggml-base.so").read_bytes()
    said = b"0.25.1\0"
    if said not in bytes_:
        raise Broken("the host's library does not hold its version")
    (directory / "libggml-base.so.0").write_bytes(bytes_.replace(said, version.encode().ljust(len(said), b"\0")))
    return str(directory)


def text(begin=0, n=None):
    """n characters of the text, from the first word after `begin`."""
    whole = TEXT_FILE.read_text(encoding="utf-8")
    begin = whole.index(" ", begin) + 1 if begin else 0
    return whole[begin:begin + n if n else None]


PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n",
    "The first president of the United States was",
    "Water boils at a temperature of",
    "A short letter to a friend about the weather in spring:\n\n",
    "The three primary colours are",
    "List of the planets of the solar system:\n1.",
    "To bake a loaf of bread you need",
    "Question: Why is the sky blue?\nAnswer:",
]


# --- comparing -----------------------------------------------------------------------------------

def words(string):
    return re.findall(r"[A-Za-z]+", string)


def sane(string):
    """Whether a text is more than noise or one token repeated: letters, several words, no broken bytes."""
    found = words(string)
    letters = sum(c.isalpha() or c.isspace() for c in string)
    return (len(string) > 0 and letters >= 0.6 * len(string) and "\ufffd" not in string and
            len(set(found)) >= max(2, len(found) // 12))


# By how much two tokens may move against each other: the sum of both gaps where the greedy texts part. Weights of 4 bits
# and activations of 8 amplify every other order of rounding. The host's own texts of 100 tokens with and without flash
# attention part in 7 of 10 prompts, with sums up to 0.51 (SmolLM2) and 0.57 (Gemma3); another order of the cells of a
# unified cache gave up to 0.61.
TIE = 0.8


def tie(a, b):
    """Whether two answers are the same, or part where two tokens were nearly as likely. Needs n_probs >= 2."""
    i = parting(a, b)
    return i is None or gap(a, i) + gap(b, i) <= TIE


def apart(a, b):
    """By how much two answers prefer each its own token where they part, both together; 0: they are the same. Of tokens
    that the other does not list: infinitely."""
    i = parting(a, b)
    if i is None:
        return 0
    (x, mine), (y, other) = ((dict(answer.probs[i]), answer.probs[i][0][0]) for answer in (a, b))
    return x[mine] - x.get(other, -math.inf) + y[other] - y.get(mine, -math.inf)


def same_files(a, b):
    return Path(a).read_bytes() == Path(b).read_bytes()


def difference(a, b):
    """In words, for a failed comparison of files."""
    x, y = Path(a).read_bytes(), Path(b).read_bytes()
    n = sum(p != q for p, q in zip(x, y))
    return f"{n} of {len(x)} bytes differ" if len(x) == len(y) else f"{len(x)} and {len(y)} bytes"

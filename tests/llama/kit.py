# SPDX-License-Identifier: MIT
"""What the tests of the llama.cpp device share: programs, models, servers, figures, checks.

A test is a script: it prints one line per check (`ok ...` or `FAILED ...`) and exits with 0, 1, or 77 when the
host cannot be had. `--quick` is the short form. Programs come from scripts/get-llama, models from
scripts/get-models. Environment:

    QUIRE_PLUGIN      the device (default build/release/lib/libggml-quire.so)
    QUIRE_LLAMA_BIN   directory of llama-server and the others
    QUIRE_THREADS     threads of the programs (default 2)
    QUIRE_KEEP=1      keeps logs and files of a test that passed (those of a failed one are always kept)

text.txt is a piece of Herman Melville's "Moby-Dick" (1851), in the public domain.
"""
import atexit
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEXT_FILE = HERE / "text.txt"
SKIPPED = 77

quick = "--quick" in sys.argv[1:]
threads = os.environ.get("QUIRE_THREADS", "2")
_failed = []
_folder = None


# --- checks --------------------------------------------------------------------------------------

def expect(ok, what, detail=""):
    """One check: `detail` is printed only when it fails. Returns ok."""
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
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


class Broken(Exception):
    """A program did not do what every check after it needs."""


def part(function, *args, **named):
    """Runs one part of a test. When a program breaks, this part fails and the next one still runs."""
    name = " ".join([function.__name__.replace("_", " ")] + [os.path.basename(str(a)) if str(a).startswith("/") else str(a) for a in args])
    try:
        function(*args, **named)
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
    programs()
    plugin()
    part(run)
    seconds = time.monotonic() - start
    if _failed or os.environ.get("QUIRE_KEEP"):
        note(f"logs and files are in {folder()}")
    elif _folder:
        shutil.rmtree(_folder, ignore_errors=True)
    print(f"{len(_failed)} failed, {seconds:.0f} s" if _failed else f"passed, {seconds:.0f} s", flush=True)
    sys.exit(1 if _failed else 0)


def folder():
    """Directory of this test's files."""
    global _folder
    if _folder is None:
        _folder = Path(tempfile.mkdtemp(prefix=f"quire-{Path(sys.argv[0]).stem}-"))
    return _folder


# --- programs, models, text ----------------------------------------------------------------------

def _script(name, *args):
    done = subprocess.run([str(ROOT / "scripts" / name), *args], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        skip(f"scripts/{' '.join([name, *args])} gave nothing")
    return done.stdout.strip()


_found = {}


def programs():
    """Directory of llama.cpp's programs."""
    if "programs" not in _found:
        path = os.environ.get("QUIRE_LLAMA_BIN")
        if not path:
            if sys.platform != "linux" or os.uname().machine != "x86_64":
                skip("scripts/get-llama builds on x86-64 Linux")
            flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1].split()
            wide = {"avx512f", "avx512vbmi", "avx512_vnni", "avx512_bf16"} <= set(flags)
            path = _script("get-llama", *([] if wide else ["--avx2"]))
        if not (Path(path) / "llama-server").exists():
            skip(f"no llama-server in {path}")
        _found["programs"] = Path(path)
    return _found["programs"]


def plugin():
    path = Path(os.environ.get("QUIRE_PLUGIN") or ROOT / "build/release/lib/libggml-quire.so")
    if not path.exists():
        skip(f"no {path}")
    return path.resolve()


def model(name):
    """Path of a model of scripts/get-models."""
    if name not in _found:
        _found[name] = _script("get-models", name)
    return _found[name]


def made_model(*args):
    """Path of a model of scripts/make-model, made anew for this test."""
    path = folder() / ("made" + "".join(args) + ".gguf")
    if not path.exists():
        subprocess.run([str(ROOT / "scripts" / "make-model"), str(path), *args], check=True)
    return str(path)


def text(begin=0, n=None):
    """n characters of the text, from the first word after `begin`."""
    if "text" not in _found:
        _found["text"] = TEXT_FILE.read_text(encoding="utf-8")
    begin = _found["text"].index(" ", begin) + 1 if begin else 0
    return _found["text"][begin:begin + n if n else None]


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


# --- running programs ----------------------------------------------------------------------------

def environment(with_plugin, env=None):
    """Nothing of QUIRE_*, GGML_* and LLAMA_* of the caller reaches a program."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("QUIRE_", "GGML_", "LLAMA_"))}
    clean.setdefault("OMP_WAIT_POLICY", "passive")  # a team that spins takes five times as long on a busy machine
    if with_plugin:
        clean["GGML_BACKEND_PATH"] = str(plugin())
        clean["QUIRE_LOG"] = "1"
        clean.update(env or {})
    elif env:
        raise ValueError("a stock run takes no environment")
    return clean


def uses_device(log):
    """Whether every KV buffer named in a log of llama.cpp is the device's."""
    buffers = re.findall(r"(\S+) KV buffer size", log)
    return bool(buffers) and all("QUIRE" in b for b in buffers)


class Run:
    """What a program wrote, and how it ended."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err


def run(program, args, plugin=True, env=None, timeout=900, check=True):
    command = [str(programs() / program), *map(str, args)]
    try:
        done = subprocess.run(command, env=environment(plugin, env), timeout=timeout, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        raise Broken(f"no end after {timeout} s: {shell(command, plugin, env)}") from None
    if check and done.returncode != 0:
        raise Broken(f"exit status {done.returncode}: {shell(command, plugin, env)}\n{done.stderr[-1500:]}")
    return Run(command, done.returncode, done.stdout, done.stderr)


def shell(command, with_plugin, env=None):
    """The command as one would type it."""
    head = [f"GGML_BACKEND_PATH={plugin()}"] if with_plugin else []
    return " ".join(head + [f"{k}={v}" for k, v in (env or {}).items()] + [str(c) for c in command])


def perplexity(path, args=(), plugin=True, env=None, ctx=512, chunks=4, base=None, save=None):
    """Figures of llama-perplexity as a dict: ppl, ppl_error, and against the logits in the file `base`:
    kld, kld_error, kld99, top1 (percent), ratio, ratio_error. `save` writes such a file."""
    command = ["-m", path, "-f", TEXT_FILE, "-c", ctx, "--chunks", chunks, "-t", threads, "-lv", "4", *args]
    if save:
        command += ["--kl-divergence-base", save]
    if base:
        command += ["--kl-divergence", "--kl-divergence-base", base]
    done = run("llama-perplexity", command, plugin, env)
    log = done.out + done.err
    if plugin and not uses_device(log):
        raise Broken(f"the device was not used: {shell(done.command, plugin, env)}")
    number = r"\s*(-?[\d.]+|-?nan)"
    patterns = {
        "ppl ppl_error": rf"Mean PPL\(Q\)\s*:{number} ±{number}" if base else
                         rf"Final estimate: PPL ={number} \+/-{number}",
    }
    if base:
        patterns.update({
            "kld kld_error": rf"Mean    KLD:{number} ±{number}",
            "kld99": rf"99\.0%   KLD:{number}",
            "top1": rf"Same top p:{number}",
            "ratio ratio_error": rf"Mean PPL\(Q\)/PPL\(base\)\s*:{number} ±{number}",
        })
    figures = {}
    for names, pattern in patterns.items():
        found = re.search(pattern, log)
        if not found:
            raise Broken(f"no figures from {shell(done.command, plugin, env)}\n{log[-800:]}")
        figures.update(zip(names.split(), map(float, found.groups())))
    figures["log"] = log
    return figures


# --- server --------------------------------------------------------------------------------------

class Answer:
    """Of a completion: text, tokens, n_cached (tokens of the prompt that were not computed), timings, and
    probs: per token the list of (token, log-probability), likeliest first, if n_probs was given."""

    def __init__(self, raw):
        self.raw = raw
        self.text = raw["content"]
        self.tokens = raw.get("tokens", [])
        self.timings = raw.get("timings", {})
        self.n_cached = self.timings.get("cache_n", 0)
        self.probs = [[(t["id"], t["logprob"]) for t in p["top_logprobs"]]
                      for p in raw.get("completion_probabilities", [])]


class Server:
    """llama-server on a free port of the loopback device. `slots` is the directory of slot files."""

    def __init__(self, path, *args, plugin=True, env=None, slots=None):
        self.slots = Path(slots or tempfile.mkdtemp(dir=folder(), prefix="slots-"))
        self.with_plugin, self.env = plugin, env
        self.process = None
        for attempt in range(3):  # the port may have been taken in between
            self.port = free_port()
            self.command = [str(programs() / "llama-server"), "-m", str(path), "--host", "127.0.0.1",
                            "--port", str(self.port), "-t", threads, "--slots", "--slot-save-path",
                            f"{self.slots}/", "-lv", "4", *map(str, args)]
            fd, self.log_path = tempfile.mkstemp(dir=folder(), prefix="server-", suffix=".log")
            self.process = subprocess.Popen(self.command, env=environment(plugin, env), stdin=subprocess.DEVNULL,
                                            stdout=fd, stderr=fd)
            os.close(fd)
            atexit.register(self._kill)
            if self._wait(180):
                break
            self._kill()
            if "couldn't bind" not in self.log() or attempt == 2:
                raise Broken(f"no server: {self.shell()}\n{self.log()[-1500:]}")
        if plugin and not uses_device(self.log()):
            self._kill()
            raise Broken(f"the device was not used: {self.shell()}")

    def shell(self):
        return shell(self.command, self.with_plugin, self.env)

    def _wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return True
            except OSError:
                time.sleep(0.05)
        return False

    def _kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self):
        return Path(self.log_path).read_text(errors="replace")

    def request(self, path, body=None, timeout=900):
        """The parsed answer and the HTTP status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.loads(answer.read()), answer.status
        except urllib.error.HTTPError as e:
            body = e.read().decode(errors="replace")
            try:
                return json.loads(body), e.code
            except ValueError:
                return {"error": body}, e.code
        except OSError as e:
            ended = self.process.poll()
            how = f"server ended with {ended}" if ended is not None else str(e)
            raise Broken(f"{how} at {path}: {self.shell()}\n{self.log()[-1500:]}") from None

    def need(self, path, body=None):
        answer, status = self.request(path, body)
        if status != 200:
            raise Broken(f"{path} gave {status} {json.dumps(answer)[:300]}: {self.shell()}")
        return answer

    def completion(self, prompt, n=32, slot=None, cache=True, **more):
        """Greedy by default. `prompt` is a string or a list of tokens."""
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "seed": 1, "cache_prompt": cache,
                "return_tokens": True, **more}
        if slot is not None:
            body["id_slot"] = slot
        return Answer(self.need("/completion", body))

    def together(self, calls):
        """Several completions at once: a list of dicts of completion()'s arguments."""
        answers, wrong = [None] * len(calls), []

        def one(i):
            try:
                answers[i] = self.completion(**calls[i])
            except Exception as e:
                wrong.append(e)

        workers = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        if wrong:
            raise wrong[0]
        return answers

    def save(self, slot, name):
        """Path of the slot file written."""
        self.need(f"/slots/{slot}?action=save", {"filename": name})
        return self.slots / name

    def restore(self, slot, name):
        return self.need(f"/slots/{slot}?action=restore", {"filename": name})

    def erase(self, slot):
        return self.need(f"/slots/{slot}?action=erase", {})

    def tokens(self, string, special=True):
        return self.need("/tokenize", {"content": string, "add_special": special})["tokens"]

    def rss(self):
        """Resident bytes."""
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(re.search(r"^Rss:\s+(\d+) kB", rollup, re.M)[1]) * 1024

    def stop(self):
        """Exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self._kill()
                raise Broken(f"server did not stop: {self.shell()}") from None
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self._kill()
            return
        status = self.stop()
        if status != 0 or "GGML_ASSERT" in self.log():
            raise Broken(f"server ended with {status}: {self.shell()}\n{self.log()[-1500:]}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- comparing -----------------------------------------------------------------------------------

def parting(a, b):
    """Index of the first token in which two answers differ, or None."""
    for i, (x, y) in enumerate(zip(a.tokens, b.tokens)):
        if x != y:
            return i
    return None if len(a.tokens) == len(b.tokens) else min(len(a.tokens), len(b.tokens))


def gap(answer, i):
    """Between the two likeliest tokens at a place, as log-probabilities. Needs n_probs >= 2."""
    if i >= len(answer.probs) or len(answer.probs[i]) < 2:
        return float("inf")
    return answer.probs[i][0][1] - answer.probs[i][1][1]


def drift(a, b, n=None):
    """Largest and root mean square difference of the log-probability of the likeliest token, over the tokens
    that two answers have in common (and n of them at most)."""
    end = parting(a, b)
    end = min(x for x in (end, n, len(a.probs), len(b.probs)) if x is not None)
    differences = [abs(a.probs[i][0][1] - b.probs[i][0][1]) for i in range(end) if a.probs[i] and b.probs[i]]
    if not differences:
        return 0.0, 0.0
    return max(differences), (sum(d * d for d in differences) / len(differences)) ** 0.5


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


def same_files(a, b):
    return Path(a).read_bytes() == Path(b).read_bytes()


def difference(a, b):
    """In words, for a failed comparison of files."""
    x, y = Path(a).read_bytes(), Path(b).read_bytes()
    n = sum(p != q for p, q in zip(x, y))
    return f"{n} of {len(x)} bytes differ" if len(x) == len(y) else f"{len(x)} and {len(y)} bytes"

# SPDX-License-Identifier: MIT
"""llama.cpp as the evaluation and the tests use it: programs, models, perplexity, servers, answers.

Programs come from scripts/get-llama, models from scripts/get-models. Environment:

    QUIRE_PLUGIN      the device (default build/release/lib/libggml-quire.so)
    QUIRE_LLAMA_BIN   directory of llama-server and the others
    QUIRE_THREADS     threads of the programs (default 2)
"""
import atexit
import json
import math
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
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TEXT_FILE = HERE / "text" / "moby.txt"

threads = os.environ.get("QUIRE_THREADS", "2")
_folder = None


class Broken(Exception):
    """A program did not do what it is needed for."""


class Absent(Exception):
    """A program or a model cannot be had here."""


def folder():
    """Directory of the files of this run."""
    global _folder
    if _folder is None:
        _folder = Path(tempfile.mkdtemp(prefix=f"quire-{Path(sys.argv[0]).stem}-"))
    return _folder


def remove_folder():
    if _folder:
        shutil.rmtree(_folder, ignore_errors=True)


# --- programs, models ----------------------------------------------------------------------

def _script(name, *args):
    done = subprocess.run([str(ROOT / "scripts" / name), *args], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        raise Absent(f"scripts/{' '.join([name, *args])} gave nothing")
    return done.stdout.strip()


_found = {}


def programs():
    """Directory of llama.cpp's programs."""
    if "programs" not in _found:
        path = os.environ.get("QUIRE_LLAMA_BIN")
        if not path:
            if sys.platform != "linux" or os.uname().machine != "x86_64":
                raise Absent("scripts/get-llama builds on x86-64 Linux")
            flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1].split()
            wide = {"avx512f", "avx512vbmi", "avx512_vnni", "avx512_bf16"} <= set(flags)
            path = _script("get-llama", *([] if wide else ["--avx2"]))
        if not (Path(path) / "llama-server").exists():
            raise Absent(f"no llama-server in {path}")
        _found["programs"] = Path(path)
    return _found["programs"]


def plugin():
    path = Path(os.environ.get("QUIRE_PLUGIN") or ROOT / "build/release/lib/libggml-quire.so")
    if not path.exists():
        raise Absent(f"no {path}")
    return path.resolve()


def model(name):
    """Path of a model of scripts/get-models."""
    if name not in _found:
        _found[name] = _script("get-models", name)
    return _found[name]


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


def perplexity(path, args=(), plugin=True, env=None, ctx=512, chunks=4, base=None, save=None,
               text=TEXT_FILE, timeout=900):
    """Figures of llama-perplexity as a dict: ppl, ppl_error, and against the logits in the file `base`:
    kld, kld_error, kld99, top1 (percent), ratio, ratio_error. `save` writes such a file."""
    command = ["-m", path, "-f", text, "-c", ctx, "--chunks", chunks, "-t", threads, "-lv", "4", *args]
    if save:
        command += ["--kl-divergence-base", save]
    if base:
        command += ["--kl-divergence", "--kl-divergence-base", base]
    done = run("llama-perplexity", command, plugin, env, timeout)
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
    if base:  # after each chunk, over all so far: KL and its error, top-1, PPL ratio
        pair = rf"{number}\s*±{number}"
        line = rf"^\s*\d+\s+{number}\s*±{number}\s+{pair}\s+{pair}\s+{number}\s*±{number} %\s+{pair} %"
        figures["by_chunk"] = [[float(m[5]), float(m[6]), float(m[9]), round(math.exp(float(m[3])), 6)]
                               for m in re.finditer(line, done.out, re.M)]
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
    """llama-server on a free port of the loopback device. `slots` is the directory of slot files; `host` that of the
    programs, if it is not programs()."""

    patience = 900  # seconds for an answer

    def __init__(self, path, *args, plugin=True, env=None, slots=None, host=None):
        self.slots = Path(slots or tempfile.mkdtemp(dir=folder(), prefix="slots-"))
        self.with_plugin, self.env = plugin, env
        self.process = None
        for attempt in range(3):  # the port may have been taken in between
            self.port = free_port()
            self.command = [str(Path(host or programs()) / "llama-server"), "-m", str(path), "--host", "127.0.0.1",
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
        if plugin and not (self.says("KV buffer size") and uses_device(self.log())):
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

    def says(self, words):
        """Whether the log has these words. The server answers before a thread of its own has written all lines."""
        end = time.monotonic() + 60
        while words not in self.log() and time.monotonic() < end:
            time.sleep(0.05)
        return words in self.log()

    def request(self, path, body=None):
        """The parsed answer and the HTTP status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.patience) as answer:
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

    def resident_kv(self):
        """Resident bytes of the device's pages: only the device leaves its memory out of core dumps (flag dd)."""
        total = 0
        for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{self.process.pid}/smaps").read_text()):
            flags = re.search(r"^VmFlags:(.*)$", entry, re.M)
            if flags and " dd" in flags[1]:
                total += int(re.search(r"^Rss:\s+(\d+) kB", entry, re.M)[1]) * 1024
        return total

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


_kept = []


def keep_port(port=0):
    """A port of the loopback device, this one if it is given. As long as this process lives the system gives it to nobody else, and a
    server, which listens with SO_REUSEADDR or SO_REUSEPORT, can still have it. OSError: it is taken."""
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", port))
    except OSError:
        s.close()
        raise
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # not before: then two could keep the same one
        s.setsockopt(socket.SOL_SOCKET, option, 1)
    _kept.append(s)
    return s.getsockname()[1]


def free_port():
    return keep_port()


# --- comparing answers ---------------------------------------------------------------------------

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

# SPDX-License-Identifier: MIT
"""A quire serve with a real llama-server behind it, for tests."""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "llama"))
import kit  # noqa: E402

CONTEXT = 2048


def tool():
    return os.environ.get("QUIRE_TOOL") or str(kit.ROOT / "build/release/bin/quire")


def llama_server(model, context):
    """The line of a llama-server, without its port. model: a name, or a file."""
    return [str(kit.programs() / "llama-server"), "-m", str(model) if "/" in str(model) else kit.model(model), "-c", str(context), "-t", str(kit.threads)]


def read_until(process, stream, words, seconds):
    """What a process prints, up to the line with these words. It is killed if they do not come in time."""
    said = ""
    give_up = threading.Timer(seconds, process.kill)
    give_up.start()
    for line in stream:
        said += line
        if words in line:
            break
    give_up.cancel()
    return said


def children(pid):
    """Processes that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def said(log):
    """All that processes have written to a file. seek() and read() would not do: the place in the file is theirs too, and what they write
    next would overwrite what is there."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")


class Asked:
    """Something that answers at self.port."""

    def ask(self, method, path, body=None, headers=None, timeout=300):
        """Status, headers and body of an answer."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})} if data is not None else headers or {})
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()


class Sidecar(Asked):
    """with Sidecar(store, ...) as s: it is ready, and is stopped at the end."""

    def __init__(self, store, *flags, options=(), env=None, model="smollm2-135m", context=CONTEXT, server=None, port=None, store_size="1G",
                 before=()):
        self.port = port or kit.free_port()
        self.log = tempfile.TemporaryFile("w+")
        command = [*before, tool(), "serve", "--log", "--store", str(store), *([] if store == "none" else ["--store-size", store_size]), *options, "--",
                   *(server or llama_server(model, context)), "--port", str(self.port), *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, "QUIRE_PLUGIN": str(kit.plugin()), **(env or {})})
        self.ended = None
        self.wait_ready()

    def wait_ready(self, seconds=180, path="/quire/health"):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise kit.Broken(f"quire serve ended with {self.process.returncode}: {self.text()[-2000:]}")
            try:
                if self.ask("GET", path)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise kit.Broken("quire serve does not become ready: " + self.text()[-2000:])

    def text(self):
        return said(self.log)

    def complete(self, prompt, n=8, **more):
        status, _, answer = self.ask("POST", "/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, **more})
        if status != 200:
            raise kit.Broken(f"status {status}: {answer[:500]}")
        return json.loads(answer)

    def figures(self):
        """Counters by their names."""
        return {name: int(n) for name, n in re.findall(r"^quire_serve_(\w+)_total (\d+)$", self.metrics(), re.M)}

    def metrics(self):
        return self.ask("GET", "/quire/metrics")[2].decode()

    def root(self):
        """What servers have in common that share pages; "" if it is not known."""
        return re.search(r'^quire_serve_info\{version="[\d.]+",root="(|[0-9a-f]{16})"\} 1$', self.metrics(), re.M)[1]

    def short_rest(self, text):
        """A text without a little of its end, so that fewer than 32 of its tokens come after its whole pages. From these quire serve does not learn how
        fast the server computes: with a small model and a busy disk it could find that computing is faster, and restore nothing."""
        while True:
            n = len(json.loads(self.ask("POST", "/tokenize", {"content": text, "add_special": True, "parse_special": True})[2])["tokens"])
            if (n - 1) % 64 < 31:
                return text
            text = text[:-5]

    def wait_figure(self, name, least, seconds=120):
        return self.wait(lambda: self.figures()[name] >= least, seconds)

    def wait_text(self, words, n=1, seconds=120):
        """Whether it comes to say these words, so often. It says them before or after it counts what they are about."""
        return self.wait(lambda: self.text().count(words) >= n, seconds)

    def wait(self, is_so, seconds=120):
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def kill_server(self):
        """kill -9 of the llama-server; returns when another one is ready. Until quire serve has seen the end, it still says that it is ready."""
        old = self.server()
        os.kill(old, signal.SIGKILL)
        if not self.wait(lambda: self.server() not in (None, old)):
            raise kit.Broken("a killed server is not started again: " + self.text()[-2000:])
        self.wait_ready()

    def server(self):
        """The process of the llama-server."""
        found = children(self.process.pid)
        return found[0] if found else None

    def folder(self):
        """Where its server has its socket and slot files; None while there is no server."""
        for pid in children(self.process.pid):
            found = re.search(rb"(/(?:dev/shm|tmp)/quire-serve\.\w{6})/llama\.sock", Path(f"/proc/{pid}/cmdline").read_bytes())
            if found:
                return Path(found[1].decode())
        return None

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise kit.Broken("quire serve did not stop within two minutes")
        self.ended = self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.stop()
        finally:
            self.log.close()

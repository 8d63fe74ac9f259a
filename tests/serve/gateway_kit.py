# SPDX-License-Identifier: MIT
"""A fleet as examples/fleet/run starts it, and gateways of their own, for tests."""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from sidecar import Asked, kit, llama_server, said, tool


_next_port = 20000 + os.getpid() * 37 % 9000


def free_ports(n, and_above=0):
    """The first of n ports in a row that are kept for this process, and so are those and_above higher."""
    global _next_port
    while True:
        first = _next_port
        _next_port = first + n if first < 29000 else 20000
        try:
            for port in [first + i for i in range(n)] + [first + and_above + i for i in range(n) if and_above]:
                kit.keep_port(port)
            return first
        except OSError:
            continue


class Observed(Asked):
    """Something whose figures and health can be asked for."""

    def health(self):
        status, _, body = self.ask("GET", "/quire/health", timeout=10)
        return status, json.loads(body)

    def figures(self):
        """Counters by name; those with a label by name and label."""
        _, _, text = self.ask("GET", "/quire/metrics")
        return {m[1]: int(m[2]) for m in re.finditer(r"^quire_(?:serve|gateway)_(\S+) (\d+)$", text.decode(), re.M)}

    def wait(self, is_so, seconds=180):
        """Whether a condition becomes true; one that cannot be asked is not true yet. On a busy machine everything can take long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if is_so():
                    return True
            except OSError:
                pass
            time.sleep(0.02)
        return False


class At(Observed):
    def __init__(self, port):
        self.port = port


class Gateway(Observed):
    """with Gateway("127.0.0.1:8081", ...) as g: it listens, and is stopped at the end."""

    def __init__(self, *replicas, port=None, options=()):
        self.port = port or kit.free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([tool(), "serve", "--log", "--port", str(self.port), *options, *(w for r in replicas for w in ("--replica", r))],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        if not self.wait(lambda: self.ask("GET", "/quire/health")[0]):
            raise kit.Broken("the gateway does not listen: " + self.text())

    def text(self):
        return said(self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self.log.close()


class Fleet(Observed):
    """with Fleet(folder) as f: examples/fleet/run has said that it is ready; f.port is the gateway's."""

    def __init__(self, folder, *flags, context=2048):
        self.folder = Path(folder)
        self.port = free_ports(4)
        self.cluster = free_ports(3, 10000)
        programs = Path(self.folder / "bin")
        programs.mkdir(parents=True, exist_ok=True)
        if not (programs / "quire").exists():
            (programs / "quire").symlink_to(tool())
        self.process = subprocess.Popen(
            [str(kit.ROOT / "examples/fleet/run"), str(self.folder), *llama_server("smollm2-135m", context), "-t", "1", *flags], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PORT": str(self.port), "CLUSTER_PORT": str(self.cluster), "QUIRE_PLUGIN": str(kit.plugin())})
        line = self.process.stdout.readline()
        if not line.startswith("ready: "):
            self.stop()
            logs = "".join(f"--- {p.name}\n{p.read_text(errors='replace')[-800:]}\n" for p in sorted(self.folder.glob("*.log")))
            raise kit.Broken(f"the fleet does not become ready: {line!r} {logs}")
        self.servers = [At(self.port + i) for i in (1, 2, 3)]
        self.names = [f"127.0.0.1:{s.port}" for s in self.servers]

    def pid(self, name):
        return int((self.folder / f"{name}.pid").read_text())

    def kill(self, name):
        """kill -9; returns the command, with which it can be started again."""
        pid = self.pid(name)
        command = [w.decode() for w in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
        os.kill(pid, signal.SIGKILL)
        return command

    def text(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def replica(self, figure):
        """A figure of the gateway for each replica."""
        found = self.figures()
        return [found[f'replica_{figure}{{replica="{name}"}}'] for name in self.names]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

# SPDX-License-Identifier: MIT
"""Several quire serve with real llama-servers, and a cluster of real redis-servers that they share."""
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import sidecar
from sidecar import kit

SLOTS = 16384


def free_port():
    """Its bus port must be free too, so both are looked for below those that the system gives away."""
    port = 20000 + os.getpid() * 37 % 9000
    while True:
        port = port + 1 if port < 30000 else 20000
        try:
            for p in (port, port + 10000):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", p))
            return port
        except OSError:
            continue


def command(port, *words):
    """One command to a redis-server; the answer as text."""
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.sendall(b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(w), w) for w in (str(x).encode() for x in words))]))
        return s.recv(1 << 16).decode()


class Cluster:
    """Masters without replicas."""

    def __init__(self, folder, n=3, memory="256mb"):
        if not shutil.which("redis-server"):
            raise kit.Absent("redis-server is not installed")
        self.processes, self.ports = [], []
        for i in range(n):
            port, home = free_port(), Path(folder) / f"node{i}"
            home.mkdir()
            self.processes.append(subprocess.Popen(
                ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--save", "", "--appendonly", "no",
                 "--maxmemory", memory, "--maxmemory-policy", "allkeys-lru", "--cluster-enabled", "yes", "--cluster-config-file",
                 "nodes.conf", "--cluster-node-timeout", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            self.ports.append(port)
            self.wait(port, "PING", "PONG")
        for i, port in enumerate(self.ports):
            self.want(command(port, "CLUSTER", "ADDSLOTSRANGE", SLOTS * i // n, SLOTS * (i + 1) // n - 1))
            self.want(command(port, "CLUSTER", "SET-CONFIG-EPOCH", i + 1))
        for port in self.ports[1:]:
            self.want(command(self.ports[0], "CLUSTER", "MEET", "127.0.0.1", port))
        for port in self.ports:
            self.wait(port, "CLUSTER INFO", "cluster_state:ok")

    @staticmethod
    def want(answer):
        if not answer.startswith("+OK"):
            raise kit.Broken(f"the cluster answers {answer!r}")

    @staticmethod
    def wait(port, words, text, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if text in command(port, *words.split()):
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise kit.Broken(f"no answer {text!r} to {words} at port {port}")

    def stop(self):
        for p in self.processes:
            p.kill()
        for p in self.processes:
            p.wait()


class Fleet:
    """with Fleet(3, 4) as f: f.urls; everything is stopped and removed at the end."""

    def __init__(self, n, slots, options=(), context=4096):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-fleet-")
        self.sidecars, self.cluster = [], None
        try:
            self.cluster = Cluster(self.folder.name)
            secret = Path(self.folder.name) / "tenant.key"
            secret.touch(mode=0o600)
            secret.write_bytes(secrets.token_bytes(32))
            for i in range(n):
                self.sidecars.append(sidecar.Sidecar(
                    Path(self.folder.name) / f"pages{i}", "-np", str(slots), "-c", str(context),
                    options=("--remote", f"127.0.0.1:{self.cluster.ports[0]}", "--secret-file", str(secret), *options)))
        except BaseException:
            self.__exit__()
            raise
        self.urls = [f"http://127.0.0.1:{s.port}" for s in self.sidecars]

    def kill_last(self):
        self.sidecars[-1].process.send_signal(signal.SIGKILL)
        self.sidecars[-1].process.wait()

    def figures(self):
        """What each server that lives counts."""
        return [s.figures() if s.process.poll() is None else None for s in self.sidecars]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for s in self.sidecars:
            s.stop()
            s.log.close()
        if self.cluster:
            self.cluster.stop()
        self.folder.cleanup()

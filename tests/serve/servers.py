# SPDX-License-Identifier: MIT
"""What stands beside a quire serve in tests and measurements: a llama-server without it, a cluster of redis-servers, streamed requests with times."""
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from gateway_kit import Gateway
from sidecar import Sidecar, kit, said, tool


# --- processes -----------------------------------------------------------------------------------

def cpu_seconds(pid):
    """Processor time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[17])


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Direct:
    """A llama-server of its own line, with nothing before it. policy: of Quire's device, or None without it."""

    def __init__(self, line, *flags, policy=None, env=None):
        self.port = kit.free_port()
        self.log = tempfile.TemporaryFile("w+")
        run = [tool(), "run", "--kv", policy, "--"] if policy else []
        self.process = subprocess.Popen([*run, *line, "--port", str(self.port), *flags], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, "QUIRE_PLUGIN": str(kit.plugin()), **(env or {})})
        self.wait_ready()

    def wait_ready(self, seconds=180):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise kit.Broken("llama-server does not become ready: " + said(self.log)[-2000:])

    def ask(self, method, path, body=None, timeout=600):
        return ask(self.port, method, path, body, timeout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Cluster:
    """redis-servers in cluster mode: masters, and a replica for each if wanted."""

    def __init__(self, masters=3, replicas=0):
        if not shutil.which("redis-server"):
            raise kit.Absent("no redis-server")
        self.folder = Path(tempfile.mkdtemp(prefix="quire-cluster."))
        self.ports, self.processes, self.masters = [], [], masters
        try:
            for _ in range(masters + replicas):
                self.ports.append(self._free_port())
                self.processes.append(None)
                self.start(len(self.ports) - 1)
            for i in range(masters):
                self.command(i, "CLUSTER", "ADDSLOTSRANGE", 16384 * i // masters, 16384 * (i + 1) // masters - 1)
                self.command(i, "CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            for port in self.ports[1:]:
                self.command(0, "CLUSTER", "MEET", "127.0.0.1", port)
            self._wait(lambda i: f"cluster_known_nodes:{len(self.ports)}" in self.command(i, "CLUSTER", "INFO"))
            for i in range(replicas):
                name = self.command(i % masters, "CLUSTER", "MYID")
                self._until(lambda: self.command(masters + i, "CLUSTER", "REPLICATE", name) == "OK")
            self._wait(lambda i: "cluster_state:ok" in self.command(i, "CLUSTER", "INFO"))
        except Exception:
            self.end()
            raise

    def _free_port(self):
        while True:  # the port of the cluster's own bus is 10,000 above
            port = kit.free_port()
            try:
                if port < 55000 and kit.keep_port(port + 10000):
                    return port
            except OSError:
                continue

    def start(self, i):
        """Starts a node, also one that was killed; it finds its place in the cluster by its own file."""
        place = self.folder / str(i)
        place.mkdir(exist_ok=True)
        self.processes[i] = subprocess.Popen(
            ["redis-server", "--port", str(self.ports[i]), "--bind", "127.0.0.1", "--dir", str(place), "--save", "", "--appendonly", "no", "--cluster-enabled", "yes",
             "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0",
             "--repl-diskless-sync-delay", "0"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._until(lambda: self.command(i, "PING") == "PONG")

    def _until(self, is_so, seconds=120):
        end = time.monotonic() + seconds
        while True:
            try:
                if is_so():
                    return
            except OSError:
                pass
            if time.monotonic() > end:
                raise kit.Broken("the cluster of redis-servers does not become ready")
            time.sleep(0.05)

    def _wait(self, is_so):
        for i in range(len(self.ports)):
            self._until(lambda: is_so(i))

    def wait_well(self):
        self._wait(lambda i: "cluster_state:ok" in self.command(i, "CLUSTER", "INFO"))

    def command(self, i, *words):
        """The answer of one node, as text; an error too."""
        data = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(str(w).encode()), str(w).encode()) for w in words)
        with socket.create_connection(("127.0.0.1", self.ports[i]), timeout=5) as s:
            s.sendall(data)
            f = s.makefile("rb")
            line = f.readline().decode().strip()
            if line[:1] == "$" and line != "$-1":
                return f.read(int(line[1:])).decode()
            return line[1:]

    def keys(self):
        return sum(int(self.command(i, "DBSIZE")) for i in range(self.masters))

    def kill(self, i):
        self.processes[i].kill()
        self.processes[i].wait()

    def address(self):
        return f"127.0.0.1:{self.ports[0]}"

    def end(self):
        for p in self.processes:
            if p and p.poll() is None:
                p.kill()
                p.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Fleet:
    """with Fleet(3, 4) as f: f.urls, of servers that share a cluster, or of a gateway before them; everything is stopped and removed at the end."""

    def __init__(self, n, slots, options=(), context=4096, gateway=False):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-fleet-")
        self.sidecars, self.cluster, self.gateway = [], None, None
        try:
            self.cluster = Cluster()
            secret = make_secret(Path(self.folder.name) / "tenant.key")
            each = str(max(1, int(kit.threads) // n))  # more threads than processors, all of OpenMP, wait for each other
            for i in range(n):
                self.sidecars.append(Sidecar(Path(self.folder.name) / f"pages{i}", "-np", str(slots), "-t", each, context=context,
                                                     options=("--remote", self.cluster.address(), "--secret-file", secret, *options)))
            ports = [s.port for s in self.sidecars]
            if gateway:
                self.gateway = Gateway(*(f"127.0.0.1:{port}" for port in ports))
                ports = [self.gateway.port]
                if not self.gateway.wait(lambda: self.gateway.health()[0] == 200):
                    raise kit.Broken("the gateway does not become ready: " + self.gateway.text())
        except BaseException:
            self.__exit__()
            raise
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]

    def kill_busiest(self):
        """Of many servers some have nothing to lose."""
        busiest = max(self.sidecars, key=lambda s: s.figures()["prompt_tokens"])
        busiest.process.kill()
        busiest.process.wait()

    def figures(self):
        """What each server that lives counts."""
        return [s.figures() if s.process.poll() is None else None for s in self.sidecars]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.gateway:
            self.gateway.__exit__()
        for s in self.sidecars:
            s.stop()
            s.log.close()
        if self.cluster:
            self.cluster.end()
        self.folder.cleanup()


def make_secret(path):
    Path(path).write_bytes(os.urandom(32))
    os.chmod(path, 0o600)
    return str(path)


# --- requests ------------------------------------------------------------------------------------

def ask(port, method, path, body=None, timeout=600):
    """Status, headers and body of an answer."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        c.request(method, path, None if body is None else json.dumps(body).encode(), {} if body is None else {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, dict(r.getheaders()), r.read()
    finally:
        c.close()


class Streamed:
    """A streamed answer: when its first byte and its first token came, in ms since the request was sent; all of its events."""

    def __init__(self, port, path, body, timeout=1200):
        data = json.dumps({**body, "stream": True}).encode()
        c = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.monotonic()
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                  % (path.encode(), len(data)) + data)
        got, self.byte_ms, self.token_ms = b"", None, None
        while True:
            piece = c.recv(65536)
            now = 1e3 * (time.monotonic() - begin)
            if not piece:
                break
            if self.byte_ms is None:
                self.byte_ms = now
            got += piece
            if self.token_ms is None and b"data: " in got:
                self.token_ms = now
        self.all_ms = 1e3 * (time.monotonic() - begin)
        c.close()
        head, _, rest = got.partition(b"\r\n\r\n")
        self.status = int(head.split()[1]) if head else 0
        if b"chunked" in head.lower():
            rest = _joined(rest)
        if self.status != 200:
            raise kit.Broken(f"status {self.status}: {rest[:300]!r}")
        self.events = [json.loads(line[6:]) for line in rest.split(b"\n") if line.startswith(b"data: ") and line[6:].strip() != b"[DONE]"]
        self.timings = self.events[-1].get("timings", {})
        self.text = "".join(e.get("content") or "".join(c["delta"].get("content") or "" for c in e.get("choices", ())) for e in self.events)


def _joined(body):
    """The bytes of a body in chunks."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size.split(b";")[0] or b"0", 16)
        if not n:
            break
        parts.append(body[:n])
        body = body[n + 2:]
    return b"".join(parts)

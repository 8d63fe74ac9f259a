#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The configurations of nginx and HAProxy in examples/fleet, with real ones before a real quire serve: TLS, events one by one, clients that leave."""
import json
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gateway_kit import Gateway
from sidecar import Sidecar, kit

expect, note, part = kit.expect, kit.note, kit.part
EXAMPLES = kit.ROOT / "examples/fleet"
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
folder = Path(tempfile.mkdtemp(prefix="quire-proxies-test."))


def connect(port):
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=300), server_hostname="localhost")


def request(path, body=None):
    data = json.dumps(body).encode() if body is not None else b""
    return (b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (b"POST" if body is not None else b"GET", path.encode(), len(data)) + data)


def receive(c):
    """What comes, with the time of each piece."""
    pieces = []
    while True:
        piece = c.recv(65536)
        if not piece:
            return pieces
        pieces.append((time.monotonic(), piece))


def events_come_one_by_one(port):
    """On a busy machine several can have come when this program gets to read, so there are three tries."""
    for k in range(3):
        found, told = stream(port)
        if found:
            break
    expect(found, told)


def stream(port):
    with connect(port) as c:
        c.sendall(request("/completion", {"prompt": "One, two, three,", "n_predict": 24, "temperature": 0, "ignore_eos": True, "stream": True}))
        pieces = receive(c)
    whole = b"".join(p for _, p in pieces)
    times = [t for t, p in pieces for _ in range(p.count(b"data: "))]
    last = json.loads(next(line for line in reversed(whole.splitlines()) if line.startswith(b"data: {"))[6:])
    took = last["timings"]["predicted_ms"] / 1e3
    spread = times[-1] - times[0]
    expect(whole.startswith(b"HTTP/1.1 200") and len(times) >= 24, "a stream comes through TLS", str(whole[:300]))
    return (len(set(times)) >= 20 and spread > 0.8 * took,
            f"{len(times)} events in {len(set(times))} pieces, over {spread:.2f} of the {took:.2f} s that the server takes for them")


def client_leaves(port, s, waits):
    """Before the first byte of the answer, and in a stream."""
    before = s.figures()["left"]
    c = connect(port)
    c.sendall(request("/completion", {"prompt": TEXT[:2500] if waits else "Hello", "n_predict": 1000, "ignore_eos": True, "stream": not waits}))
    if waits:
        time.sleep(1)
    else:
        c.recv(100)
    c.close()
    gone = time.monotonic()
    seen = s.wait_figure("left", before + 1, 60)
    expect(seen, f"a client that leaves {'before the first byte' if waits else 'a stream'} is seen by the sidecar")
    note(f"after {1e3 * (time.monotonic() - gone):.0f} ms at most")


def gateway_ends(name, port, other):
    """One of two gateways goes: requests go to the other one, from the first moment on."""
    other.process.terminate()
    answers = []
    for i in range(12):
        with connect(port) as c:
            c.sendall(request("/v1/chat/completions", {"messages": [{"role": "user", "content": f"Hello {i}"}], "max_tokens": 1}))
            answers.append(b"".join(b for _, b in receive(c))[:12])
    expect(answers == [b"HTTP/1.1 200"] * 12, f"{name}: a gateway that ends is passed over", str(answers))


def through(name, command, config, s, g, other):
    port = kit.free_port()
    text = (EXAMPLES / config).read_text()
    for old, new in (("8443", str(port)), ("127.0.0.1:8080", f"127.0.0.1:{g.port}"), ("127.0.0.1:8090", f"127.0.0.1:{other.port}"), ("cert-and-key.pem", str(folder / "cert-and-key.pem"))):
        if old not in text and old != "cert-and-key.pem":
            raise kit.Broken(f"{config} does not have {old}")
        text = text.replace(old, new)
    (folder / config).write_text(text)
    log = open(folder / f"{name}.log", "w+")
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    try:
        for _ in range(1200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        for _ in range(600):
            with connect(port) as c:
                c.sendall(request("/v1/models"))
                answer = b"".join(b for _, b in receive(c))
            if answer.startswith(b"HTTP/1.1 200"):
                break
            time.sleep(0.1)
        expect(answer.startswith(b"HTTP/1.1 200") and b"object" in answer, f"{name}: /v1/models through TLS", f"{answer[:200]} {(folder / f'{name}.log').read_text()[-500:]}")
        for path in ("/quire/metrics", "/props", "/%70rops", "/slots", "/metrics", "/tools", "/cors-proxy", "/v1/chat/completions/control"):
            with connect(port) as c:
                c.sendall(request(path))
                answer = b"".join(b for _, b in receive(c))
            expect(answer.startswith(b"HTTP/1.1 403") and b"one server" not in answer, f"{name}: {path} is not for the outside", str(answer[:200]))
        part(events_come_one_by_one, port)
        part(client_leaves, port, s, True)
        part(client_leaves, port, s, False)
        part(gateway_ends, name, port, other)
    finally:
        p.terminate()
        p.wait(120)
        log.close()


def run():
    try:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, stderr=subprocess.DEVNULL)
        (folder / "cert-and-key.pem").write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
        with Sidecar(folder / "pages", "-t", "1", "-np", "2", options=("--kv", "none")) as s, Gateway(f"127.0.0.1:{s.port}") as g:
            with Gateway(f"127.0.0.1:{s.port}") as other:
                part(through, "nginx", [NGINX, "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"], "nginx.conf", s, g, other)
            with Gateway(f"127.0.0.1:{s.port}") as other:
                part(through, "haproxy", [HAPROXY, "-db", "-f", "haproxy.cfg"], "haproxy.cfg", s, g, other)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    NGINX, HAPROXY = (shutil.which(p, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin") for p in ("nginx", "haproxy"))
    if not NGINX or not HAPROXY or not shutil.which("openssl"):
        kit.skip("nginx, haproxy or openssl is not installed")
    sys.exit(kit.main(run))

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A gateway before three quire serve with real llama-servers and a real cluster: conversations stay, load is spread, replicas are killed and come back."""
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gateway_kit import Fleet, Gateway
from sidecar import kit, read_until, tool

expect, note, part = kit.expect, kit.note, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
folder = Path(tempfile.mkdtemp(prefix="quire-gateway-test."))


def chat(text, *more, n=4, **options):
    messages = [{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": text}, *more]
    return {"messages": messages, "max_tokens": n, "temperature": 0, **options}


def post(fleet, body, headers=None):
    return fleet.ask("POST", "/v1/chat/completions", body, headers)


def conversations(f):
    """All turns of a conversation go to one replica; conversations with the same instructions are spread."""
    used = set()
    for c in range(6):
        before, turns = f.replica("requests_total"), []
        for _ in range(2):
            status, _, answer = post(f, chat(f"Tell me about the number {c}.", *turns))
            expect(status == 200, f"conversation {c} is answered", answer[:300])
            turns += [{"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]}, {"role": "user", "content": "More."}]
        after = f.replica("requests_total")
        homes = [i for i in range(3) if after[i] > before[i]]
        expect(len(homes) == 1 and sum(after) - sum(before) == 2, f"the turns of conversation {c} go to one replica", f"{before} {after}")
        used.update(homes)
    expect(len(used) >= 2, "conversations with the same instructions are spread over replicas", str(used))


def one_prompt_for_all(f):
    """Nine requests at once with one prompt: the bound on load spreads them. On a busy machine the first may have ended before the last begins, so there
    are three tries."""
    tries = []
    for k in range(3):
        before, statuses = f.replica("requests_total"), []
        body = chat(f"The same for everybody, {k}.", n=24, ignore_eos=True)
        threads = [threading.Thread(target=lambda: statuses.append(post(f, body)[0])) for _ in range(9)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        got = [a - b for a, b in zip(f.replica("requests_total"), before)]
        tries.append(got)
        expect(statuses == [200] * 9 and sum(got) == 9, "nine requests at once are answered", f"{statuses} {got}")
        if max(got) <= 5 and min(got) >= 1:
            break
    expect(max(got) <= 5 and min(got) >= 1, "the load of one prompt is bounded", str(tries))


def passed_on(f):
    status, headers, body = f.ask("GET", "/v1/models")
    expect(status == 200 and json.loads(body)["data"], "GET /v1/models is answered by a replica", body[:200])
    for method, path in (("GET", "/slots"), ("GET", "/%73lots"), ("GET", "/metrics"), ("POST", "/slots/0?action=erase"), ("POST", "/props"), ("POST", "/lora-adapters"),
                         ("POST", "/v1/chat/completions/control"), ("POST", "/tools"), ("POST", "/cors-proxy?url=x"), ("GET", "/cors-proxy?url=x")):
        status, _, body = f.ask(method, path, {} if method == "POST" else None)
        expect(status == 403 and b"one server" in body, f"{method} {path} is refused with a reason", f"{status} {body[:200]}")
    status, _, body = f.ask("POST", "/v1/chat/completions", b"{not json")
    expect(status in (400, 500), "broken JSON is for the server to refuse", f"{status} {body[:200]}")
    status, headers, body = post(f, chat("Count to five.", n=8, stream=True))
    events = [line for line in body.decode().splitlines() if line.startswith("data: ")]
    expect(status == 200 and "text/event-stream" in headers.get("Content-Type", "") and events[-1] == "data: [DONE]" and len(events) > 3, "streams pass", body[-300:])
    status, health = f.health()
    expect(status == 200 and health["status"] == "ok" and len(health["replicas"]) == 3, "its health names the replicas", str(health))
    status, health = f.servers[0].health()
    expect(status == 200 and health["status"] == "ok" and health["restoring"] and health["remote_nodes"] == 3 and health["remote_nodes_down"] == 0,
           "the health of a sidecar tells of the store", str(health))
    text = f.text("gateway")
    expect("path=/v1/chat/completions status=200 replica=127.0.0.1:" in text, "it prints a line for each request, with the replica", text[-500:])


def client_leaves(f):
    """What the gateway and the sidecar have seen when the client is gone, before the first byte of an answer."""
    body = json.dumps(chat(TEXT[30000:32000], n=400)).encode()
    before = [s.figures()["left_total"] for s in f.servers]
    c = socket.create_connection(("127.0.0.1", f.port))
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    expect(f.wait(lambda: sum(f.replica("in_flight")) == 1), "the request is on its way")
    time.sleep(0.5)
    c.close()
    gone = time.monotonic()
    seen = f.wait(lambda: sum(s.figures()["left_total"] for s in f.servers) > sum(before), 60)
    note(f"the sidecar has seen it after {1e3 * (time.monotonic() - gone):.0f} ms at most")
    # The gateway counts after it has left the sidecar.
    expect(seen and f.wait(lambda: f.figures()["left_total"] == 1) and sum(f.replica("failures_total")) == 0,
           "a client that leaves is seen by the sidecar, and is nobody's failure", str(f.figures()))


class Load:
    """Threads that send one short conversation after the other."""

    def __init__(self, f, n=3):
        self.f, self.answers, self.goes_on = f, [], True
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, who):
        k = 0
        while self.goes_on:
            k += 1
            begin = time.monotonic()
            try:
                status, _, body = post(self.f, chat(f"What is {who} times {k}?", n=16))
            except OSError as e:
                status, body = 0, str(e)
            self.answers.append((begin, status, body[:200], time.monotonic() - begin))

    def end(self):
        self.goes_on = False
        for t in self.threads:
            t.join()
        return self.answers


def killed(f):
    load = Load(f)
    f.wait(lambda: min(f.replica("in_flight")) > 0, 10)
    time.sleep(0.5)
    command = f.kill("server-2")
    expect(f.wait(lambda: f.health()[1]["status"] == "degraded", 60), "a replica that was killed is noticed", str(f.health()))
    time.sleep(2)
    answers = load.end()
    wrong = [a for a in answers if a[1] != 200]
    expect(answers and not wrong, f"kill -9 of a replica: all of {len(answers)} requests are answered", str(wrong[:3]))
    note(f"the slowest took {max(a[3] for a in answers):.1f} s; sent again {f.figures()['again_total']} times")
    log = open(f.folder / "server-2.log", "a")
    again = subprocess.Popen([tool(), *command[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             env={**os.environ, "QUIRE_PLUGIN": str(kit.plugin())})
    try:
        expect(f.wait(lambda: f.health()[1]["status"] == "ok"), "it gets requests again when it is ready", str(f.health()))
        all_down(f)
    finally:
        again.terminate()
        again.wait(60)
        log.close()


def all_down(f):
    """Stopped servers, not killed ones: they take connections and say nothing."""
    pids = [f.pid("server-1"), f.pid("server-3")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect(f.wait(lambda: f.health()[1]["status"] == "degraded" and sum(r["ready"] for r in f.health()[1]["replicas"]) == 1, 60), "silent replicas are noticed", str(f.health()))
        statuses = [post(f, chat(f"Hello {i}"))[0] for i in range(3)]
        expect(statuses == [200] * 3, "the other one answers everything", str(statuses))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    expect(f.wait(lambda: f.health()[1]["status"] == "ok"), "they get requests again", str(f.health()))


def drained(f):
    """A gateway that is asked to end lets requests come to their end."""
    for s in f.servers:  # one of them may still compute the prompt of the client that has left
        s.ask("POST", "/v1/chat/completions", chat("Hello", n=1), timeout=120)
    with Gateway(*f.names) as g:
        got = []
        t = threading.Thread(target=lambda: got.append(post(g, chat("Write a long story.", n=40))[0]))
        t.start()
        g.wait(lambda: sum(v for k, v in g.figures().items() if k.startswith("replica_in_flight")) == 1)
        g.process.terminate()
        t.join()
        code = g.process.wait(60)
        expect(got == [200] and code == 0, "it ends when its requests have ended", f"{got} exit status {code}: {g.text()}")


def without_replicas():
    """Names that lead nowhere, and gateways that lead back to themselves."""
    ports = [kit.free_port() for _ in range(3)]
    with Gateway(f"127.0.0.1:{ports[0]}", "nowhere.invalid:80", "[::1]:9") as g:
        begin = time.monotonic()
        status, headers, body = post(g, chat("Hello"))
        fault = json.loads(body)["error"]
        expect(status == 503 and fault["code"] == 503 and fault["type"] == "unavailable_error" and headers.get("Retry-After"), "without replicas it answers 503 in llama-server's form", body[:300])
        expect(time.monotonic() - begin < 60, "and soon")
        expect(g.wait(lambda: g.health()[0] == 503), "and its health says so", str(g.health()))
    a, b = ports[1:]
    with Gateway(f"127.0.0.1:{b}", port=a) as first, Gateway(f"127.0.0.1:{a}", port=b):
        before, begin = first.figures()["requests_total"], time.monotonic()
        status, _, body = post(first, chat("Hello"))
        expect(status in (503, 508), "two gateways that lead to each other do not turn round for ever", f"{status} {body[:200]}")
        came = first.figures()["requests_total"] - before
        most = 20 + 3 * (time.monotonic() - begin)  # the other one asks for its health every second
        expect(came < most, "and the request has not come often", f"{came} {first.figures()}")
    with Gateway(f"127.0.0.1:{a}", port=a) as g:
        expect(g.wait(lambda: g.health()[0] == 503) and g.wait(lambda: "this gateway itself" in g.text()), "a gateway that is its own replica says so", g.text())


class Peer:
    """Not a quire serve: says that it is ready, and answers requests with these bytes, none if they are empty."""

    def __init__(self, answer):
        self.answer, self.requests = answer, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.name = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            c, _ = self.listener.accept()
            with c:
                head = c.recv(65536)
                if head.startswith(b"GET /quire/health"):
                    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                elif head:
                    self.requests += 1
                    c.sendall(self.answer)


def strange_peers():
    def ask(*answers):
        peers = [Peer(a) for a in answers]
        with Gateway(*(p.name for p in peers)) as g:
            try:
                status, headers, _ = g.ask("POST", "/completion", {"prompt": "Hello"})
                if status == 503:
                    expect("Retry-After" not in headers, "a request that was taken is not called one that has not begun", str(headers))
            except http.client.IncompleteRead:
                status = "broke off"
                g.wait(lambda: g.figures()["broken_total"])  # it is counted after the client has been told
            return status, sum(p.requests for p in peers), g.figures()

    good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    for what, answer in (("nothing", b""), ("garbage", b"\0\1\2\r\n\r\n"), ("100,000 headers", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100000 + b"\r\n"),
                         ("503", b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n")):
        status, n, _ = ask(answer, answer, answer)
        expect(status == 503 and n == 2, f"a request to which two replicas answer {what} is not given to a third", f"{status} {n}")
    late = b"HTTP/1.1 503 X\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
    status, n, _ = ask(late, late, late, late, good)
    expect(status == 200 and n <= 5, "replicas that are not ready are passed over", f"{status} {n}")
    status, n, _ = ask(b"")
    expect(status == 503 and n == 1, "the only replica takes it and says nothing", f"{status} {n}")
    status, n, figures = ask(good[:-1], good[:-1])
    expect(status == "broke off" and n == 1 and figures["broken_total"] == 1, "an answer that has begun is not asked for again", f"{status} {n}")
    status, n, figures = ask(b"HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n")
    expect(status == 302 and n == 1 and figures["left_total"] == 0, "a redirection is passed on, and an empty answer is a whole one", f"{status} {n} {figures}")


def slow_clients():
    """A client that reads slowly gets its whole answer, also after its replica has said the last word; proxies that keep connections are sent away."""
    body = os.urandom(16 << 20)
    peer = Peer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    with Gateway(peer.name) as g:
        kept = http.client.HTTPConnection("127.0.0.1", g.port, timeout=120)

        def ask_kept():
            kept.request("GET", "/quire/health")
            r = kept.getresponse()
            r.read()
            return r.getheader("Connection")

        before = ask_kept()
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)  # buffers of sockets do not take the end of the answer
            c.settimeout(120)
            c.connect(("127.0.0.1", g.port))
            c.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            got = bytearray(c.recv(65536))
            g.process.terminate()
            g.wait(lambda: "ending when the requests" in g.text())  # it has got the signal, and says so
            after = ask_kept()
            expect((before, after) == (None, "close"), "a connection that is kept ends with its next answer", f"{before} {after}")
            pauses = 0
            while piece := c.recv(65536):
                got += piece
                if len(got) > len(body) - (5 << 20) + (pauses << 18):
                    pauses += 1
                    time.sleep(0.3)
        rest = bytes(got).partition(b"\r\n\r\n")[2]
        expect(rest == body, "a client that reads slowly gets its whole answer", f"{len(rest)} of {len(body)} bytes")
        expect(g.process.wait(120) == 0, "then it ends")


def last_requests():
    """A proxy sends its next request on a connection that it keeps, in the moment in which the gateway is asked to end."""
    def answered():
        with Gateway(Peer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").name) as g:
            kept = http.client.HTTPConnection("127.0.0.1", g.port, timeout=30)
            kept.request("GET", "/quire/health")
            kept.getresponse().read()
            g.process.terminate()
            try:
                kept.request("POST", "/completion", b"{}")
                r = kept.getresponse()
                return r.status == 200 and r.getheader("Connection") == "close" and r.read() == b"ok"
            except (OSError, http.client.HTTPException):
                return False

    expect(any(answered() for _ in range(10)), "it is answered")  # this program may be slower than the half second that there is


def too_slow():
    """The end does not wait for ever: not longer than was said, and not at all after a second signal."""
    class Silent(Peer):
        def run(self):
            held = []
            while True:
                c, _ = self.listener.accept()
                held.append(c)
                if c.recv(65536).startswith(b"GET /quire/health"):
                    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
                    held.pop().close()

    for seconds, signals in ((1, 1), (100, 2)):
        with Gateway(Silent(b"").name, options=("--drain-seconds", str(seconds))) as g, socket.create_connection(("127.0.0.1", g.port)) as c:
            c.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            g.wait(lambda: sum(v for k, v in g.figures().items() if k.startswith("replica_in_flight")) == 1)
            begin = time.monotonic()
            g.process.terminate()
            if signals == 2:
                g.wait(lambda: "a second signal does not wait" in g.text())  # two that come at the same moment are one
                g.process.terminate()
            code = g.process.wait(120)
            took = time.monotonic() - begin
            expect(code == 0 and took < 60 and (signals == 2 or took >= 1), f"the end waits {seconds} s at most, {signals} signals", f"{code} {took}")


def without_files():
    """A gateway that may open no more files says so, and takes no replica for down."""
    peer = Peer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    with Gateway(peer.name) as g:
        c = http.client.HTTPConnection("127.0.0.1", g.port, timeout=30)

        def ask(method, path):
            c.request(method, path, b"{}" if method == "POST" else None)
            r = c.getresponse()
            return r.status, r.read()

        expect(ask("POST", "/completion")[0] == 200, "a request is passed on")
        before = resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        status, body = ask("POST", "/completion")
        expect(status == 503 and b"cannot open a connection" in body, "without files it says that it cannot", f"{status} {body[:300]}")
        time.sleep(2.5)  # the replica is asked every second
        status, body = ask("GET", "/quire/health")
        expect(status == 200 and json.loads(body)["replicas"][0]["ready"], "and the replica stays ready", f"{status} {body[:300]}")
        resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE, before)
        expect(ask("POST", "/completion")[0] == 200 and "gets no requests" not in g.text(), "with files it goes on", g.text())
        c.close()
    line = ["sh", "-c", 'ulimit -n 64; exec "$0" "$@"', tool(), "serve", "--replica", peer.name, "--port", str(kit.free_port())]
    p = subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    # The replica that was found ready is said by another thread, before this line or after it.
    said = read_until(p, p.stderr, "connections", 60)
    p.terminate()
    p.wait(60)
    p.stderr.close()
    expect("12 connections" in said, "the limit of files is one of connections", said)


def refused():
    for words in (["--replica", "host"], ["--replica", "host:0"], ["--replica", "host:99999"], ["--replica", "::1:80"], ["--replica", "[::1]"], ["--replica", "http://a:80"],
                  ["--replica", "a b:80"], ["--replica", "a:80x"], ["--replica", ""], ["--replica", "a:80", "--replica", "A:80"], ["--replica", "a:80", "--", "llama-server"], ["--port", "80"],
                  ["--port", "80", "--", "llama-server"], ["--drain-seconds", "5", "--", "llama-server"],
                  *(["--replica", "a:80", "--port", str(kit.free_port()), *more] for more in (["--tenants", "file"], ["--store", "pages"], ["--seal-disk"], ["--remote", "cache:6379"],
                                                                                              ["--secret-file", "key"], ["--kv", "none"]))):
        done = subprocess.run([tool(), "serve", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        expect(done.returncode == 2 and done.stderr.strip().count("\n") <= 1, f"refused: {' '.join(words)}", f"{done.returncode} {done.stderr}")


def with_fleet():
    with Fleet(folder, "-np", "2") as f:
        part(conversations, f)
        part(one_prompt_for_all, f)
        part(passed_on, f)
        part(client_leaves, f)
        part(drained, f)
        part(killed, f)
    expect(f.process.returncode == 0, "the example ends cleanly", f"status {f.process.returncode}")
    processes = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in read(p)]
    expect(not processes, "nothing of it is left", str([read(p) for p in processes]))


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def run():
    try:
        part(refused)
        part(without_replicas)
        part(strange_peers)
        part(slow_clients)
        part(last_requests)
        part(too_slow)
        part(without_files)
        part(with_fleet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for needed in ("redis-server", "redis-cli", "curl", "openssl"):
        if not shutil.which(needed):
            kit.skip(f"no {needed}")
    sys.exit(kit.main(run))

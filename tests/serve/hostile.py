#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire serve and clients that mean harm, with the real llama-server behind it; then answers that no llama-server should give.

QUIRE_HOSTILE=long: 9,000 connections at a time, and more endless and unfinished bodies."""
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from broken_server import ANSWERS
from sidecar import Sidecar, kit, tool

expect, note, part = kit.expect, kit.note, kit.part
LONG = os.environ.get("QUIRE_HOSTILE") == "long"
store = Path(tempfile.mkdtemp(prefix="quire-serve-hostile."))
BROKEN = Path(__file__).with_name("broken_server.py")
BODY = b'{"prompt":"Hi","n_predict":1,"temperature":0}'


class Wire:
    """One connection, byte by byte."""

    def __init__(self, s, seconds=120, receive=None):  # a machine may be busy
        self.c = socket.socket()
        if receive:
            self.c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.c.settimeout(seconds)
        self.c.connect(("127.0.0.1", s.port))

    def send(self, data):
        """False: the other side has closed."""
        try:
            self.c.sendall(data)
            return True
        except OSError:
            return False

    def rest(self):
        """Everything until the end, or None if that does not come."""
        pieces = []
        try:
            while True:
                piece = self.c.recv(1 << 20)
                if not piece:
                    return b"".join(pieces)
                pieces.append(piece)
        except socket.timeout:
            return None
        except OSError:
            return b"".join(pieces)

    def close(self):
        self.c.close()


def raw(s, data, seconds=120):
    w = Wire(s, seconds)
    w.send(data)
    answer = w.rest()
    w.close()
    return answer


def request(line, *headers, body=b""):
    return b"\r\n".join([line, *headers]) + b"\r\n\r\n" + body


def status(answer):
    found = re.match(rb"HTTP/1\.1 (\d+)", answer or b"")
    return int(found[1]) if found else 0


def is_fault(answer, code):
    """An error in llama-server's form."""
    try:
        return status(answer) == code and json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == code
    except (ValueError, KeyError, IndexError):
        return False


def state(s):
    """File descriptors, threads and resident KiB."""
    text = Path(f"/proc/{s.process.pid}/status").read_text()
    return (len(os.listdir(f"/proc/{s.process.pid}/fd")), int(re.search(r"Threads:\s+(\d+)", text)[1]), int(re.search(r"VmRSS:\s+(\d+)", text)[1]))


def settled(s, before, seconds=120):
    """Whether descriptors and threads go back to what they were."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = state(s)
        if now[0] <= before[0] + 2 and now[1] <= before[1] + 2:
            return now
        time.sleep(0.2)
    return None


def paths(s):
    """Slots are not for clients, however the path is written."""
    for path in (b"/slots/0", b"/%73lots/0", b"/%u0073lots/0", b"/slots/" + b"0" * 300, b"//slots/0", b"/./slots/0", b"/slots%2f0", b"/slots/0;x", b"/x/../slots/0",
                 b"/slots/0#", b"http://x/slots/0", b"/%2573lots/0", b"/x%00/slots/0", b"/%u0073%u006cots/0", b"/slots/0 HTTP/1.1", b"\\slots/0", b"/lora-adapters",
                 b"/%6cora-adapters", b"/slots\t/0"):
        answer = raw(s, request(b"POST " + path + b"?action=erase HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Length: 2", body=b"{}"))
        expect(answer is not None and (400 <= status(answer) < 500 or not answer), f"POST {path[:24].decode()} is refused", str(answer)[:200])
    answer = raw(s, request(b"POST /" + b"a" * 40000 + b" HTTP/1.1", b"Host: x", b"Content-Length: 2", body=b"{}"))
    expect(is_fault(answer, 414), "a target of 40,000 bytes", str(answer)[:200])
    expect(status(raw(s, request(b"POST /" + b"a" * 70000 + b" HTTP/1.1", b"Host: x"))) == 414, "a target of 70,000 bytes")


def framing(s):
    """What two programs could read in two ways is refused."""
    def post(*headers, body=BODY, line=b"POST /completion HTTP/1.1", host=b"Host: x"):
        return raw(s, request(line, *([host] if host else []), *headers, b"Connection: close", body=body))

    length, chunked = b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    expect(status(post(length)) == 200 and status(post(chunked, body=chunks)) == 200, "a length or chunks are understood")
    for what, answer, code in (
            ("two lengths", post(length, b"Content-Length: 2"), 400), ("the same length twice", post(length, length), 400),
            ("chunks and a length", post(chunked, b"Content-Length: 4", body=chunks), 400),
            ("chunked twice", post(chunked, chunked, body=chunks), 400), ("another encoding", post(b"Transfer-Encoding: xchunked", length), 400),
            ("gzip, chunked", post(b"Transfer-Encoding: gzip, chunked", body=chunks), 400),
            ("chunks in HTTP/1.0", post(chunked, body=chunks, line=b"POST /completion HTTP/1.0"), 400),
            ("no Host", post(length, host=None), 400), ("two Hosts", post(length, b"Host: y"), 400),
            ("a name with a NUL", post(length, b"X\0Y: a"), 400),
            ("a value with a CR", post(length, b"X-A: a\rX-B: b"), 400), ("a name with a space", post(length, b"X A: a"), 400),
            ("a space before the colon", post(length, b"X-A : a"), 400),
            ("a folded header", post(length, b"X-A: a\r\n b"), 400), ("a folded key", post(length, b"X-Api: a\r\n -Key"), 400),
            ("a folded length", post(b"Content-Length:\r\n\t%d" % len(BODY)), 400), ("a folded encoding", post(b"Transfer-Encoding:\r\n chunked", body=chunks), 400),
            ("a length out of two lines", post(b"Content-: %d\r\n  Length" % len(BODY)), 400),
            ("a value with an escape", post(length, b"X-A: a\x1bb"), 400), ("a header without a colon", post(length, b"foo"), 400),
            ("a length with a sign", post(b"Content-Length: +4"), 400), ("a negative length", post(b"Content-Length: -1"), 400),
            ("a length of 1e20", post(b"Content-Length: 100000000000000000000"), 413), ("a length of 1e12", post(b"Content-Length: 1000000000000"), 413),
            ("chunk -1", post(chunked, body=b"-1\r\nabc"), 400), ("chunk zz", post(chunked, body=b"zz\r\nabc"), 400),
            ("a chunk that is longer than it says", post(chunked, body=b"3\r\nabcde\r\n0\r\n\r\n"), 400),
            ("two keys", post(length, b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
            ("two types", post(length, b"Content-Type: application/json", b"Content-Type: text/plain"), 400),
            ("a key for one hop", post(length, b"Authorization: Bearer a", b"Connection: authorization"), 400),
            *((f"{name.decode()} for one hop", post(length, b"Connection: x, " + name), 400)
              for name in (b"content-type", b"Content-Length", b"Content-Encoding", b"Transfer-Encoding")),
            ("gzip", post(length, b"Content-Encoding: gzip"), 415), ("deflate after identity", post(length, b"Content-Encoding: identity", b"Content-Encoding: deflate"), 415),
            ("101 headers", post(length, *[b"X-%d: a" % i for i in range(100)]), 431),
            ("a header of 20,000 bytes", post(length, b"X-A: " + b"a" * 20000), 431), ("a header of 1 MB", post(length, b"X-A: " + b"a" * 1000000), 431),
            ("100,000 headers", post(length, *[b"X-%d: a" % i for i in range(100000)]), 431),
            ("a target with a space", post(length, line=b"POST /completion x HTTP/1.1"), 0),
            ("HTTP/2", post(length, line=b"POST /completion HTTP/2.0"), 505), ("CONNECT", post(line=b"CONNECT x:80 HTTP/1.1", body=b""), 400)):
        expect(answer is not None and status(answer) == code, f"{what}: {code or 'closed'}", str(answer)[:300])
    expect(raw(s, request(b"GET /health HTTP/1.1", b"Host: x") * 3 + request(b"GET /health HTTP/1.1", b"Host: x", b"Connection: close")).count(b"200 OK") == 4, "four requests at once have four answers")
    answer = raw(s, request(b"POST /completion HTTP/1.1", b"Host: x", b"Content-Length:\r\n 99", body=request(b"GET /health HTTP/1.1", b"Host: x", b"Connection: close")))
    expect(answer.count(b"HTTP/1.1 ") == 1, "a body behind a folded length is not a request", str(answer)[:300])
    answer = raw(s, request(b"GET /health HTTP/1.1", b"Host: x", b"Connection: Upgrade, HTTP2-Settings, close", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"))
    expect(status(answer) == 200, "h2c is not switched to", str(answer)[:200])
    expect(status(raw(s, request(b"POST /completion HTTP/1.0", length, body=BODY))) == 200, "HTTP/1.0")
    expect(b"100 Continue" in raw(s, request(b"POST /completion HTTP/1.1", b"Host: x", b"Connection: close", b"Expect: 100-continue", length, body=BODY)), "Expect: 100-continue")
    expect(status(raw(s, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600 + b"\n\n", 5)) in (0, 400), "a TLS greeting is not an answer")


def bodies(s):
    """No text reaches the server with an id_slot of the client's. No other rule than that of the wishes gives these slots."""
    wishes = (3, 3, 3, 0, 0, 0)

    def answers(make, *headers, path=b"/completion"):
        found = []
        for slot in wishes:
            body = make(slot)
            answer = raw(s, request(b"POST " + path + b" HTTP/1.1", b"Host: x", b"Connection: close", *headers, b"Content-Length: %d" % len(body), body=body))
            used = re.search(rb'"id_slot":(\d+)', answer or b"")
            found.append((status(answer), int(used[1]) if used else None))
        return found

    start = b'{"prompt":"Hi","n_predict":1,"id_slot":%d'
    for what, make in {
            "plain": lambda k: start % k + b"}", "with a byte order mark": lambda k: b"\xef\xbb\xbf" + start % k + b"}", "ended by NUL": lambda k: start % k + b"}\0 x",
            "escaped": lambda k: b'{"prompt":"Hi","n_predict":1,"id\\u005fslot":%d}' % k, "twice": lambda k: (start + b',"id_slot":%d}') % (3 - k, k),
            "in a list of prompts": lambda k: b'{"prompt":["Hi","Ho"],"n_predict":1,"id_slot":%d}' % k, "not watched": lambda k: start % k + b',"cache_prompt":false}',
            "cache_prompt twice": lambda k: start % k + b',"cache_prompt":false,"cache_prompt":true}', "a fraction": lambda k: b'{"prompt":"Hi","n_predict":1,"id_slot":%d.0}' % k,
            "after a NUL in a name": lambda k: b'{"id_slot\\u0000x":1,"prompt":"Hi","n_predict":1,"id_slot":%d}' % k,
            "after a large number": lambda k: b'{"seed":%s,"prompt":"Hi","n_predict":1,"id_slot":%d}' % (b"9" * 18, k),
            "comments": lambda k: start % k + b"/**/}", "NaN": lambda k: start % k + b',"a":NaN}', "more text": lambda k: start % k + b"}{}", "bad UTF-8": lambda k: start % k + b',"a":"\xff"}',
            "half a surrogate": lambda k: start % k + b',"a":"\\ud800"}', "UTF-16": lambda k: (start % k + b"}").decode().encode("utf-16"),
            "a list": lambda k: b"[" + start % k + b"}]", "nothing": lambda k: b""}.items():
        found = answers(make)
        expect([slot for _, slot in found] != list(wishes) and all(code in (200, 400) for code, _ in found), f"id_slot, {what}", str(found))
    form = lambda k: b"".join(b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % p for p in ((b"prompt", b"Hi"), (b"n_predict", b"1"), (b"id_slot", b"%d" % k))) + b"--b--\r\n"
    found = answers(form, b"Content-Type: multipart/form-data; boundary=b")
    expect(all(code == 400 for code, _ in found), "a form is not a completion", str(found))
    found = answers(form, b"Content-Type: multipart/form-data; boundary=b", path=b"/infill")
    expect([slot for _, slot in found] != list(wishes), "nor a way to a slot", str(found))
    deep = lambda k: b'{"input_prefix":"a","input_suffix":"b","n_predict":1,"id_slot":%d,"a":' % k + b"[" * 300 + b"]" * 300 + b"}"
    for headers in ((), (b"Connection: Content-Type",), (b"Connection: close, content-type",)):
        found = answers(deep, b"Content-Type: multipart/form-data; boundary=b", *headers, path=b"/infill")
        expect(all(code >= 400 for code, _ in found), f"nor is JSON that is called a form, {headers}", str(found))
    for depth in (300, 1000000):
        body = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"tools":' + b"[" * depth + b"]" * depth + b"}"
        begin = time.monotonic()
        answer = raw(s, request(b"POST /v1/chat/completions HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Length: %d" % len(body), body=body))
        expect(is_fault(answer, 400) and time.monotonic() - begin < 60, f"JSON of {depth} levels", str(answer)[:200])
    body = b'{"prompt":"x","a":[' + b"[]," * (30 << 20) + b"[]]}"
    before = state(s)[2]
    answer = raw(s, request(b"POST /completion HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Length: %d" % len(body), body=body))
    expect(is_fault(answer, 400) and state(s)[2] - before < 300 << 10, "30 million lists", f"{str(answer)[:200]} {before} {state(s)}")


def slow(s):
    """s has one second for headers, two for a body, four for a piece of an answer."""
    begin = time.monotonic()
    before = state(s)
    head = Wire(s)
    tail = Wire(s)
    tail.send(b"GET /health HTTP/1.1\r\nHost: x\r\n")
    body = Wire(s)
    body.send(request(b"POST /completion HTTP/1.1", b"Host: x", b"Content-Length: 100000"))
    chunks = Wire(s)
    chunks.send(request(b"POST /completion HTTP/1.1", b"Host: x", b"Transfer-Encoding: chunked"))
    much = Wire(s)
    much.send(request(b"POST /completion HTTP/1.1", b"Host: x", b"Content-Length: 1000000", body=b" " * 500000))
    ended = {}
    while len(ended) < 5 and time.monotonic() - begin < 60:
        for name, wire, byte in (("line", head, b"G"), ("headers", tail, b"a"), ("body", body, b" "), ("chunks", chunks, b"1\r\n \r\n"), ("after much", much, b" ")):
            if name not in ended and not wire.send(byte):
                ended[name] = time.monotonic() - begin
        time.sleep(0.1)
    expect(len(ended) == 5, "a byte at a time does not keep a connection", str(ended))
    for name, wire in (("headers", tail), ("body", body)):
        expect(is_fault(wire.rest(), 408), f"slow {name} are told so")
    leaver = Wire(s)
    leaver.send(request(b"POST /completion HTTP/1.1", b"Host: x", b"Content-Length: 500", body=BODY))
    leaver.close()
    silent = Wire(s)
    # llama-server goes on for a client with this header, which may come back.
    stream = json.dumps({"prompt": "Once upon a time", "n_predict": 1900, "stream": True, "ignore_eos": True}).encode()
    resumed = Wire(s)
    resumed.send(request(b"POST /completion HTTP/1.1", b"Host: x", b"X-Conversation-Id: a", b"Content-Length: %d" % len(stream), body=stream))
    resumed.c.recv(100)
    resumed.close()
    begin = time.monotonic()
    while time.monotonic() - begin < 30 and any(slot["is_processing"] for slot in json.loads(s.ask("GET", "/slots")[2])):
        time.sleep(0.1)
    took = time.monotonic() - begin
    expect(took < 20, "no slot computes for a client that has left", f"{took:.1f} s")
    after = settled(s, before)
    expect(after, "nothing stays of them", f"{before} {state(s)}")
    for wire in (head, tail, body, chunks, much, silent):
        wire.close()
    expect("Paris" in s.complete("The capital of France is", 4)["content"], "the next request is answered")


def deaf(s):
    """A client that reads nothing of an answer that does not end."""
    before = state(s)
    wires = [Wire(s, receive=4096) for _ in range(4)]
    for w in wires:
        w.send(request(b"GET /endless HTTP/1.1", b"Host: x"))
    most, end = before[0], time.monotonic() + 60
    while most < before[0] + 8 and time.monotonic() < end:
        most = max(most, state(s)[0])
        time.sleep(0.02)
    expect(most >= before[0] + 8, "the answers have begun", f"{before} {state(s)}")
    after = settled(s, before)
    expect(after and after[2] < before[2] + (32 << 10), "they are given up", f"{before} {after or state(s)}")
    for w in wires:
        w.close()


def many(s):
    """Thousands of connections that send a byte now and then, and one client that only wants its answer."""
    n = 9000 if LONG else 3000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    before = state(s)
    wires = []
    for _ in range(min(n, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)):
        wires.append(Wire(s))
        wires[-1].send(b"GET /health HTTP/1.1\r\nHost: x\r\nX-")
    took = []
    for _ in range(10):
        begin = time.monotonic()
        ok = s.ask("GET", "/health", timeout=120)[0] == 200
        took.append(time.monotonic() - begin)
        for wire in wires[::10]:
            wire.send(b"a")
    expect(ok and sorted(took)[5] < 1, f"a request is answered beside {len(wires)} slow connections", str(took))
    note(f"median {1e3 * sorted(took)[5]:.1f} ms, longest {1e3 * max(took):.1f} ms")
    most = state(s)
    for wire in wires:
        wire.close()
    after = settled(s, before)
    expect(after and after[2] < before[2] + (64 << 10), "descriptors, threads and memory go back", f"{before} {most} {after or state(s)}")
    note(f"descriptors, threads, KiB: before {before}, beside them {most}, after {after}")


def endless(s):
    before = state(s)
    for round_ in range(5 if LONG else 2):
        w = Wire(s, 30)
        w.send(request(b"POST /completion HTTP/1.1", b"Host: x", b"Transfer-Encoding: chunked"))
        sent = 0
        piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        while sent < 200 and w.send(piece):
            sent += 1
        expect(sent < 130, "a body without an end is cut off", f"{sent} MiB")
        w.close()
    after = settled(s, before)
    expect(after and after[2] < before[2] + (128 << 10), "and it is given back", f"{before} {after or state(s)}")


def peak(s, forget=False):
    """The most resident KiB so far, or since it was forgotten."""
    if forget:
        Path(f"/proc/{s.process.pid}/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{s.process.pid}/status").read_text())[1])


def crowd(s):
    """Bodies of 64 MiB that are never ended, of which 16 may be there at a time. s gives a body 120 seconds: what is cut is cut for its memory."""
    before, lowest, n = state(s), peak(s, forget=True), 48 if LONG else 20
    holders = []
    for _ in range(n):
        holders.append(Wire(s))
        holders[-1].send(request(b"POST /completion HTTP/1.1", b"Host: x", b"Content-Length: %d" % (65 << 20)))
        holders[-1].send(b" " * (64 << 20))
    expect(s.ask("GET", "/health")[0] == 200, f"a request is answered beside {n} bodies of 64 MiB")
    codes = []
    for w in holders:
        w.c.settimeout(1)
        codes.append(status(w.rest()))  # 0: it is open, and nobody has said anything
    cut, refused = codes.count(408), [i for i, code in enumerate(codes) if code == 503]
    expect(refused and min(refused) >= 16, "what is more than 1 GiB is refused, and nothing before", str(codes))
    expect(0 < cut <= len(refused) and codes[:cut] == [408] * cut, "for each the body that began first is cut off", str(codes))
    expect(0 not in codes[:cut] and codes.count(0) <= 16, "no more than 1 GiB of them stay", str(codes))
    took = peak(s) - lowest
    expect(1000 << 10 < took < 1200 << 10, "1 GiB of bodies takes no more than 1.2 GiB of memory", f"{took >> 10} MiB")
    note(f"{len(refused)} refused, the first {cut} cut off, {took >> 10} MiB")
    for w in holders:
        w.close()
    after = settled(s, before)
    expect(after and after[2] < before[2] + (128 << 10), "and it is given back", f"{before} {after or state(s)}")
    expect(s.ask("POST", "/completion", {"prompt": "good"})[0] == 200, "the next body is taken")


def full(s):
    """Bodies that take nearly all memory that there is for them and are never ended. They go as soon as others need room, long before their time is over."""
    before = state(s)
    holders = []
    for n in [99 << 20] * 10 + [(34 << 20) - 4096]:
        holders.append(Wire(s))
        holders[-1].send(request(b"POST /completion HTTP/1.1", b"Host: x", b"Transfer-Encoding: chunked", body=b"%x\r\n" % n + b" " * n + b"\r\n1;"))
    memory = None
    while memory != (memory := state(s)[2]):  # it is still reading what was sent
        time.sleep(1)
    codes, begin, refused = [], time.monotonic(), None
    while time.monotonic() - begin < 60 and not (refused and codes[-1] == 200):
        codes.append(s.ask("POST", "/completion", {"prompt": "good", "more": "x" * 8192})[0])
        if codes[-1] == 503 and not refused:
            refused = time.monotonic()
        for wire in holders:
            wire.send(b"a")
        time.sleep(0.1)
    expect(refused and codes[-1] == 200 and time.monotonic() - refused < 20, "bodies without an end do not keep all memory", f"{time.monotonic() - begin:.1f} s {codes[:9]}")
    for wire in holders:
        wire.close()
    after = settled(s, before)
    expect(after and after[2] < before[2] + (128 << 10), "and it is given back", f"{before} {after or state(s)}")


def hops(s):
    def echoed(*headers):
        answer = raw(s, request(b"GET /echo HTTP/1.1", b"Host: x", *headers, b"Connection: close"))
        return json.loads(answer.split(b"\r\n\r\n", 1)[1])["lines"]

    lines = echoed(b"Connection: X-Mine, keep-alive", b"X-Mine: 1", b"X-Yours: 2", b"TE: trailers", b"Upgrade: h2c", b"Keep-Alive: 5", b"Proxy-Connection: x", b"X-Nul: a\0b", b"X-Conversation-Id: 1")
    names = [line.split(":")[0].lower() for line in lines[1:]]
    expect(any(line == "X-Nul: a" for line in lines), "nothing is passed on after a NUL", str(lines))
    expect("x-yours" in names and not {"x-mine", "te", "upgrade", "keep-alive", "proxy-connection", "x-conversation-id"} & set(names), "headers for one hop are not passed on", str(lines))
    expect([line for line in lines if line.lower().startswith("connection")] == ["Connection: close"], "a connection to the server has one request", str(lines))
    answer = raw(s, request(b"GET /broken/hops HTTP/1.1", b"Host: x", b"Connection: close"))
    expect(b"X-Yours: 2" in answer and b"X-Mine" not in answer, "nor those of an answer", str(answer))


def answers(s):
    """Whatever the server says: an answer, an error, or the end of the connection, and soon."""
    before = state(s)
    for name in ANSWERS:
        begin = time.monotonic()
        answer = raw(s, request(b"GET /broken/" + name.replace(" ", "%20").encode() + b" HTTP/1.1", b"Host: x", b"Connection: close"))
        expect(answer is not None and time.monotonic() - begin < 60, f"the answer: {name}", str(answer)[:200])
        if name in ("garbage", "silent", "many headers", "long header", "nul header", "no colon", "informed forever"):
            expect(is_fault(answer, 503), f"{name} is a 503", str(answer)[:200])
        if name in ("short", "broken chunk", "huge chunk", "no last chunk"):
            head, _, body = answer.partition(b"\r\n\r\n")
            whole = re.search(rb"Content-Length: (\d+)", head)
            expect((len(body) < int(whole[1])) if whole else not body.endswith(b"0\r\n\r\n"), f"{name} does not look whole", str(answer)[:300])
    for name in ("good", "forged within", "forged after", "forged events", "forged comment", "verbose"):
        was = s.figures()
        s.ask("POST", "/completion", {"prompt": name})
        now = s.figures()
        expect(now["computed_tokens"] - was["computed_tokens"] == 3 and now["miscounted"] == was["miscounted"], f"the server's own counts: {name}", str(now))
    was = s.figures()
    expect(s.ask("POST", "/completion", {"prompt": "gigantic"})[0] == 200, "an answer of 60 MB to /tokenize", str(s.figures()))
    after = settled(s, before)
    expect(after, "nothing stays of them", f"{before} {state(s)}")


def private(s):
    """Other users of the machine, and a route of llama-server that leads to slots."""
    mine = s.folder()  # those of other tests come and go
    expect(mine and mine.stat().st_mode & 0o77 == 0, "the folder with the socket and slot files is the user's alone", str(mine))
    done = subprocess.run([tool(), "serve", "--store", "none", "--kv", "none", "--", str(BROKEN), "-m", kit.model("smollm2-135m")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60, env={**os.environ, "AIP_MODE": "PREDICTION"})
    expect(done.returncode == 2 and "AIP_MODE" in done.stderr, "AIP_MODE is refused", done.stderr)


def run():
    try:
        # A second for a client is for those parts alone that wait for its end: on a busy machine it can be too short for any request.
        short, broken = ("--client-seconds", "1"), [str(BROKEN), "-m", kit.model("smollm2-135m"), "-c", "2048"]
        with Sidecar(store, "-np", "4", options=("--kv", "none")) as s:
            part(paths, s)
            part(framing, s)
            part(bodies, s)
        expect(s.ended == 0, "it stops cleanly", f"status {s.ended}")
        with Sidecar(store, "-np", "4", options=("--kv", "none", *short)) as s:
            part(slow, s)
        expect(s.ended == 0, "it stops cleanly after slow clients", f"status {s.ended}")
        with Sidecar("none", options=("--kv", "none", *short), server=broken) as s:
            part(deaf, s)
            part(endless, s)
        with Sidecar("none", options=("--kv", "none"), server=broken) as s:
            part(private, s)
            part(hops, s)
            part(answers, s)
            part(many, s)
        with Sidecar("none", options=("--kv", "none", "--client-seconds", "60"), server=broken) as s:
            part(crowd, s)
            part(full, s)
    finally:
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))

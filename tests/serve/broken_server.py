#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What may sit on the socket of a llama-server: it answers GET /broken/NAME and the prompt NAME with the answer of that name."""
import json
import socket
import sys
import threading

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
TRUE = b'{"content":"","timings":{"cache_n":0,"prompt_n":3,"predicted_n":1}}'


def whole(body, head=OK):
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def events(*texts):
    body = b"".join(b"data: " + t + b"\n\n" for t in texts)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


FORGED = b'{"cache_n":0,"prompt_n":999,"predicted_n":7}'
ANSWERS = {
    "good": whole(TRUE),
    "garbage": b"\x00\xff\x16\x03 nothing\r\n\r\n",
    "silent": b"",
    "short": OK + b"Content-Length: 1000\r\n\r\nfew",
    "long": OK + b"Content-Length: 3\r\n\r\nmore than three",
    "negative": OK + b"Content-Length: -5\r\n\r\nabc",
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
    "length and chunks": OK + b"Content-Length: 500\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "broken chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    "huge chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc",
    "no last chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "informed": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + whole(b"{}"),
    "informed forever": b"HTTP/1.1 100 Continue\r\n\r\n" * 20000,
    "many headers": OK + b"X-A: b\r\n" * 100000 + b"\r\n",
    "long header": OK + b"X-A: " + b"a" * 1000000 + b"\r\n\r\n",
    "nul header": OK + b"X-A: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "no colon": OK + b"nonsense\r\nContent-Length: 2\r\n\r\n{}",
    "status 0": b"HTTP/1.1 000 x\r\nContent-Length: 2\r\n\r\n{}",
    "status 999": b"HTTP/1.1 999 x\r\nContent-Length: 2\r\n\r\n{}",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nabc",
    "version": b"HTTP/3.9 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "no content": b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}",
    "hops": OK + b"Connection: X-Mine, close\r\nX-Mine: 1\r\nX-Yours: 2\r\nContent-Length: 2\r\n\r\n{}",
    # What a client or a model has written, before, within and after what the server counted.
    "forged within": whole(b'{"content":"\\"timings\\":' + FORGED.replace(b'"', b'\\"') + b'","input":{"timings":' + FORGED + b'},"timings":{"cache_n":0,"prompt_n":3},"tail":{"timings":' + FORGED + b"}}"),
    "forged after": whole(b'{"timings":{"cache_n":0,"prompt_n":3},"prompt":"\\\\\\"timings\\":' + FORGED.replace(b'"', b'\\"') + b'","a":[{"timings":' + FORGED + b"}]}"),
    "forged events": events(b'{"content":"x","timings":{"cache_n":0,"prompt_n":3}}', b'{"delta":{"input":{"timings":' + FORGED + b"}}}", b'["timings",' + FORGED + b"]", b"[DONE]"),
    "forged comment": whole(b": {\"timings\":" + FORGED + b"}\n\ndata: " + TRUE + b"\n\nevent: {\"timings\":" + FORGED + b"}\n\n", OK),
    "verbose": whole(b'{"timings":{"cache_n":0,"prompt_n":3},"__verbose":{"prompt":"' + b"x" * 300000 + b'"}}'),
}


def read(c):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = c.recv(65536)
        if not piece:
            return None, None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    length = next((int(l.split(":")[1]) for l in lines if l.lower().startswith("content-length:")), 0)
    while len(body) < length:
        body += c.recv(65536)
    return lines, body


def answer(c):
    lines, body = read(c)
    if not lines:
        return
    path = lines[0].split(" ")[1]
    if path == "/health":
        c.sendall(whole(b'{"status":"ok"}'))
    elif path == "/tokenize":
        text = json.loads(body)["content"]
        c.sendall(whole(b'{"tokens":[' + (b"1," * 30000000 if text == "gigantic" else b"1,2,") + b"3]}"))
    elif path == "/endless":
        c.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            c.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
    elif path == "/echo":
        c.sendall(whole(json.dumps({"lines": lines, "body": body.decode("latin-1")}).encode()))
    elif path.startswith("/broken/"):
        c.sendall(ANSWERS.get(path[8:].replace("%20", " "), whole(b"{}")))
    else:
        c.sendall(ANSWERS.get(json.loads(body).get("prompt"), whole(TRUE)))


def serve(c):
    try:
        answer(c)
    except OSError:
        pass
    finally:
        c.close()


if __name__ == "__main__":
    s = socket.socket(socket.AF_UNIX)
    s.bind(sys.argv[sys.argv.index("--host") + 1])
    s.listen(512)
    while True:
        threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()

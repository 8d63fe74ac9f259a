#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""/v1/messages and /v1/responses through quire serve with the real llama-server: each conversation finds its own slot again among several, and
its prompt in the store after a restart; many at the same time, with clients that leave; what a request must not be able to ask for."""
import json
import shutil
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from sidecar import Sidecar, kit

expect, note, part = kit.expect, kit.note, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
STORE = ("--kv", "none", "--min-tokens", "64")
store = tempfile.mkdtemp(prefix="quire-forms.")


def piece(i):
    return f"Text {i}. " + TEXT[3000 * i:3000 * i + 700]


def message(i, stream, n=2):
    return {"model": "m", "max_tokens": n, "temperature": 0, "stream": stream, "messages": [{"role": "user", "content": [{"type": "text", "text": piece(i)}]}]}


def usage(answer, stream):
    """Tokens of the prompt, and how many of them were reused."""
    if stream:
        answer = next(line for line in answer.decode().splitlines() if line.startswith("data: ") and "message_start" in line)[6:]
    u = json.loads(answer)
    u = u["message"]["usage"] if stream else u["usage"]
    return u["input_tokens"] + u["cache_read_input_tokens"], u["cache_read_input_tokens"]


def send(s, i, stream=False, n=2):
    status, _, answer = s.ask("POST", "/v1/messages", message(i, stream, n))
    if status != 200:
        raise kit.Broken(f"status {status}: {answer[:300]}")
    return usage(answer, stream)


def slots_are_found():
    """Three conversations by turns, in three slots of four; stock would take the slots by turns and compute everything."""
    with Sidecar(store, "-np", "4", options=STORE) as s:
        sizes = [send(s, i, i == 1)[0] for i in range(3)]
        for turn, order in enumerate(((2, 0, 1), (0, 0, 2, 1))):
            for i in order:
                n, cached = send(s, i, turn == 0)
                expect(cached == n - 1 == sizes[i] - 1, f"conversation {i} is found in its slot", f"{cached} of {n}")
        status, _, answer = s.ask("POST", "/v1/responses", {"input": piece(4), "max_output_tokens": 2, "temperature": 0})
        u = json.loads(answer)["usage"]
        expect(status == 200 and s.figures()["watched"] == 11, "/v1/responses is watched", str(s.figures()))
        first = json.loads(answer)["output"][0]["content"][0]["text"]
        again = json.loads(s.ask("POST", "/v1/responses", {"input": piece(4), "max_output_tokens": 2, "temperature": 0, "id_slot": 0})[2])
        expect(again["usage"]["input_tokens_details"]["cached_tokens"] == u["input_tokens"] - 1, "and found again, whatever slot the client names")
        expect(s.wait_figure("saves", 4), "all are saved", str(s.figures()))
        f = s.figures()
        expect(f["unwatched"] == f["unsteered"] == f["miscounted"] == f["restores_short"] == f["saves_refused"] == 0, "the server took the slots that were meant", str(f))
    with Sidecar(store, "-np", "4", options=STORE) as s:
        for i in (1, 0, 2):
            n, cached = send(s, i, i == 1)
            expect(cached == (n - 1) // 64 * 64, f"after a restart conversation {i} is restored", f"{cached} of {n}")
        a = json.loads(s.ask("POST", "/v1/responses", {"input": piece(4), "max_output_tokens": 2, "temperature": 0})[2])
        n = a["usage"]["input_tokens"]
        expect(a["usage"]["input_tokens_details"]["cached_tokens"] == (n - 1) // 64 * 64, "and that of /v1/responses", str(a["usage"]))
        expect(a["output"][0]["content"][0]["text"] == first, "with the same text")
        f = s.figures()
        expect(f["restores"] == 4 and f["restores_short"] == f["unsteered"] == 0, "it counts what it did", str(f))


def one_slot():
    """What quire serve itself has left in the only slot cannot be refused by a request of /v1/messages, which cannot say cache_prompt."""
    with Sidecar(store + "/one", "-np", "1", options=STORE) as s:
        n = send(s, 5)[0]
        expect(s.wait_figure("saves", 1), "the prompt is saved", str(s.figures()))
        expect(send(s, 5)[1] == n - 1 and s.figures()["miscounted"] == 0, "and found in its slot", str(s.figures()))
    with Sidecar(store + "/one", "-np", "1", options=STORE) as s:
        n, cached = send(s, 5)
        expect(cached == (n - 1) // 64 * 64 and s.figures()["miscounted"] == 0, "after a restart it is restored", f"{cached} of {n}")


def many_at_once():
    """All forms at the same time, more than there are slots, some of whose clients leave."""
    def one(k):
        i = k % 5
        if k % 7 == 6:  # leaves at once, or a little later
            c = socket.create_connection(("127.0.0.1", s.port))
            body = json.dumps(message(i, False, 60)).encode()
            c.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.05 * (k % 3))
            c.close()
            return True
        if k % 7 == 3:
            return s.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": piece(i)}], "max_tokens": 2})[0] == 200
        if k % 14 == 5:  # may use any slot
            return s.ask("POST", "/completion", {"prompt": ["one", "two"], "n_predict": 1})[0] == 200
        return send(s, i, k % 2 == 0)[0] > 100

    with Sidecar(store, "-np", "3", options=STORE) as s, ThreadPoolExecutor(6) as pool:
        good = list(pool.map(one, range(14 if "--quick" in sys.argv else 200)))
        expect(all(good), f"{len(good)} requests are answered", str([k for k, g in enumerate(good) if not g]))
        time.sleep(0.5)
        f = s.figures()
        note(f"watched {f['watched']}, unwatched {f['unwatched']}, of these not steered {f['unsteered']}, left {f['left']}, restores {f['restores']}")
        expect(f["miscounted"] == 0 and f["restores_short"] == 0, "each was counted as expected, and what was restored was used", str(f))
        expect("no longer restored" not in s.text(), "nothing was given up")
        n, cached = send(s, 1)
        again = send(s, 1)[1]
        expect(again == n - 1, "afterwards slots are found again", f"{cached}, then {again} of {n}")


def not_for_requests():
    """n_cache_reuse would move rows to positions for which they were not computed."""
    with Sidecar(store, "-np", "2", options=STORE) as s:
        for k, mark in enumerate((b"", b"\xef\xbb\xbf")):
            text = TEXT[9000 + 3000 * k:10200 + 3000 * k]
            s.complete(TEXT[:400] + text, 1)
            body = mark + json.dumps({"prompt": text, "n_predict": 1, "n_cache_reuse": 16, "id_slot": 1}).encode()
            status, _, answer = s.ask("POST", "/completion", body)
            expect(status == 200 and json.loads(answer)["timings"]["cache_n"] < 16, f"a request cannot have chunks of a slot reused, {mark}", answer[-500:])
            s.complete(TEXT[:400] + text, 1)


def run():
    try:
        part(slots_are_found)
        part(one_slot)
        part(many_at_once)
        part(not_for_requests)
    finally:
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))

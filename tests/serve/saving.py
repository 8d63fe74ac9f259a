#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What quire serve saves and shares, with the real llama-server: a stop loses nothing, constant load does not keep it from saving, several requests with
the same beginning compute it once, and a server that reuses less than was restored is restored to no more."""
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from sidecar import Sidecar, kit

expect, note, part = kit.expect, kit.note, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
folder = Path(tempfile.mkdtemp(prefix="quire-saving-test."))


def start(store, *flags, server=None, ffn=256):
    """ffn: the larger it is, the longer a prompt takes to compute, and the surer it is that quire serve finds restoring faster on a busy machine too."""
    model = kit.made_model("--layers", "2", "--heads", "4", "--kv-heads", "2", "--head-size", "64", "--embd", "256", "--ffn", str(ffn), "--ctx", "8192")
    line = [str(server or kit.programs() / "llama-server"), "-m", model, "-c", "4096", "-t", "1"]
    return Sidecar(folder / store, *flags, options=("--kv", "none"), server=line)


def reused(answer):
    return answer["timings"]["cache_n"]


def stopped():
    """SIGTERM in the moment of the answer, before there was an idle moment."""
    with start("stopped", "-np", "2") as s:
        prompts = [s.short_rest(TEXT[3000 * i:3000 * i + 900]) for i in range(2)]
        for p in prompts:
            s.complete(p, 1)
        begin = time.monotonic()
        s.stop()
        note(f"stopped within {1e3 * (time.monotonic() - begin):.0f} ms")
    with start("stopped", "-np", "2") as s:
        found = [reused(s.complete(p, 1)) for p in prompts]
        expect(min(found) >= 256, "a stop saves what was not saved yet", str(found))


def streamed():
    """When a client has all of a stream, its slot is free and its tokens are counted: its next request may come in the same moment."""
    late = lost = 0
    with start("streamed", "-np", "4") as s:
        for i in range(30):
            prompt, before = f"{i}. {TEXT[500 * i:500 * i + 900]}", s.figures()["prompt_tokens"]
            s.ask("POST", "/completion", {"prompt": prompt, "n_predict": 2, "stream": True})
            late += s.figures()["prompt_tokens"] == before
            s.ask("POST", "/completion", {"prompt": prompt + " And", "n_predict": 2, "stream": True})
            lost += reused(s.complete(prompt + " And then", 1)) < 256
    expect(late == lost == 0, "a stream has ended for quire serve before it has for the client", f"{late} not counted yet, {lost} in another slot, of 30")


def busy():
    """More clients than slots: there is no idle moment, and every slot is overwritten by the next prompt."""
    ends = time.monotonic() + (7 if kit.quick else 20)
    with start("busy", "-np", "1") as s:
        n, worst = [0], [0.0]

        def ask(client):
            i = 0
            while time.monotonic() < ends:
                begin = time.monotonic()
                s.complete(TEXT[5000 * client + 40 * i:5000 * client + 40 * i + 900], 1)
                worst[0] = max(worst[0], time.monotonic() - begin)
                n[0] += 1
                i += 1

        threads = [threading.Thread(target=ask, args=(c,)) for c in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        figures = s.figures()
        note(f"{n[0]} requests, {figures['saves']} saves, longest {1e3 * worst[0]:.0f} ms")
        expect(figures["saves"] >= 3 and figures["saves_refused"] == 0 and figures["miscounted"] == 0, "it saves under constant load", str(figures))
        again = reused(s.complete(TEXT[:900], 1))
        expect(again >= 256, "the first prompt is there", str(again))


def herd():
    """Eight clients, four slots, one beginning. On a busy machine they may give up waiting for the first of them, so there are three tries."""
    with start("herd", "-np", "4") as s:
        s.complete(TEXT[:600], 1)
        shares = False
        for k in range(3):
            shares = shares or one_herd(s, TEXT[40000 + 4000 * k:42400 + 4000 * k])
        expect(shares, "the beginning is not computed by each", str(s.figures()))
        after = s.figures()
        expect(after["miscounted"] == 0 and after["restores_short"] == 0, "counts are right", str(after))
        gone = s.wait(lambda: not list(s.folder().glob("slot-*")))  # what is being saved has a file for a moment
        expect(gone, "no slot file is left", str(list(s.folder().glob("slot-*"))))


def one_herd(s, shared):
    n = len(json.loads(s.ask("POST", "/tokenize", {"content": shared})[2])["tokens"])
    before, answers = s.figures(), [None] * 8

    def ask(i):
        answers[i] = s.complete(shared + f" {i} {TEXT[100 * i:100 * i + 50]}", 16)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    begin = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - begin
    after = s.figures()
    computed, copied = (after[name] - before[name] for name in ("computed_tokens", "shared"))
    note(f"{n} shared tokens, {computed} computed by 8 requests in {took:.1f} s, {copied} copied")
    expect(all(a and a["content"] for a in answers), "all are answered")
    return computed < 3 * n and copied >= 1


def hung():
    """A server that does not answer any more does not keep quire serve from ending."""
    with start("hung") as s:
        s.complete(TEXT[:900], 1)
        server = s.server()
        os.kill(server, signal.SIGSTOP)
        begin = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        try:
            s.process.wait(60)
        finally:
            if Path(f"/proc/{server}").exists():
                os.kill(server, signal.SIGCONT)
        took = time.monotonic() - begin
        expect(took < 45, "it ends", f"{took:.0f} s")
        note(f"ended after {took:.1f} s")


def short():
    """A server that reuses less than was restored: it is counted; three in a row end restoring, which is said once."""
    (folder / "faults").write_text("forget")
    os.environ.update(REAL_SERVER=str(kit.programs() / "llama-server"), FAULTS=str(folder / "faults"))
    with start("short", ffn=4096) as s:
        for i in range(4):
            s.complete(TEXT[4000 * i:4000 * i + 900], 1)
    with start("short", server=Path(__file__).with_name("faulty_server.py"), ffn=4096) as s:
        for i in range(4):
            told = s.complete(TEXT[4000 * i:4000 * i + 900] + TEXT[20000:21500], 1)
            figures, most = s.figures(), min(i + 1, 3)
            expect(figures["restores"] == figures["restores_short"] == most, f"short restores are counted, {most}", f"{figures} {told['timings']}")
        expect(s.wait_text("no longer restored") and s.text().count("no longer restored") == 1, "the third is the last, and it is said once")


def run():
    try:
        part(stopped)
        part(streamed)
        part(busy)
        part(herd)
        part(short)
        if not kit.quick:
            part(hung)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))

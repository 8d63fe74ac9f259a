#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire serve with a real cluster of redis-servers: a prompt that one server computed is restored by another; without its secret, or without the cluster, requests
are answered all the same."""
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from servers import Cluster, make_secret
from sidecar import Sidecar, kit

expect, note, part = kit.expect, kit.note, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
folder = Path(tempfile.mkdtemp(prefix="quire-remote-test."))
LIMIT_MS = 2000  # of a look-up, and of a load, without --timeout


def server(name, cluster, secret, *more):
    return Sidecar(folder / name, "-t", "1", "-np", "2", options=("--remote", cluster.address(), "--secret-file", secret, "--kv", "none", *more))


def total(answer):
    return answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]


def wait_keys(cluster, n, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end and cluster.keys() < n:
        time.sleep(0.05)
    return cluster.keys() >= n


def warm(s, prompt, n_cached):
    """What a server answers whose slot holds so many tokens of the prompt from its own computing. Bits depend on how many tokens are computed at once, so that only
    answers with as many cached tokens can be compared."""
    tokens = json.loads(s.ask("POST", "/tokenize", {"content": prompt, "add_special": True, "parse_special": True})[2])["tokens"]
    s.complete([*tokens[:n_cached], tokens[0]], 1)
    answer = s.complete(tokens)
    if answer["timings"]["cache_n"] != n_cached:
        raise kit.Broken(f"the slot holds {answer['timings']['cache_n']} instead of {n_cached} tokens")
    return answer["content"]


def lines(s, figure):
    return [float(v) for v in re.findall(rf" {figure}=([\d.]+)", s.text())]


def run_with(cluster):
    secret, prompt = make_secret(folder / "tenant.key"), TEXT[:1600]
    with server("a", cluster, secret) as a:
        first = a.complete(prompt)
        n = total(first)
        whole = (n - 1) // 64 * 64
        expect(a.wait_figure("saves", 1) and wait_keys(cluster, whole // 64), f"the {whole // 64} pages of {n} tokens are in the cluster", f"{cluster.keys()} {a.text()[-800:]}")
        with server("b", cluster, secret) as b:
            second = b.complete(prompt)
            expect(second["timings"]["cache_n"] == whole, f"another server restores {whole} of {n} tokens", str(second["timings"]))
            kept = warm(a, prompt, whole)
            expect(second["content"] == kept, "and gives the text that the first gives with these tokens in a slot", f"{kept!r} {second['content']!r}")
            note(f"look-up {lines(b, 'lookup_ms')[-1]} ms, load {lines(b, 'load_ms')[-1]} ms, restore {lines(b, 'restore_ms')[-1]} ms")
            expect(a.root() and a.root() == b.root(), "and its figures have the same root", f"{a.root()} {b.root()}")
            part(wrong_secret, cluster, prompt, first, a.root())
            part(emptied, cluster, a, prompt)
            part(refusing, cluster, a)
            part(one_master_killed, cluster, a, b)
            with server("hasty", cluster, secret, "--timeout", "200") as hasty:
                part(cluster_killed, cluster, a, hasty)
    expect(a.ended == 0 and b.ended == 0, "they stop cleanly without the cluster", f"{a.ended} {b.ended}")


def wrong_secret(cluster, prompt, first, root):
    with server("c", cluster, make_secret(folder / "other.key")) as c:
        other = c.complete(prompt)
        expect(other["timings"]["cache_n"] == 0 and c.figures()["restores"] == 0, "with another secret nothing is restored", str(other["timings"]))
        expect(other["content"] == first["content"], "and the text is computed", other["content"])
        expect(c.root() not in ("", root), "its figures tell that it shares nothing", c.root())


def emptied(cluster, a, prompt):
    """The cluster lost everything; a has it on its disk and in a slot. The conversation goes on."""
    for i in range(3):
        cluster.command(i, "FLUSHALL")
    grown = prompt + TEXT[1600:2400]
    n = total(a.complete(grown))
    expect(wait_keys(cluster, n // 64), f"a cluster that was emptied gets all {n // 64} pages of a conversation that goes on", f"{cluster.keys()}")


def limit(cluster, bytes_, policy):
    for i in range(3):
        cluster.command(i, "CONFIG", "SET", "maxmemory-policy", policy)
        cluster.command(i, "CONFIG", "SET", "maxmemory", bytes_)


def refusing(cluster, a):
    """Nodes that are up and answer, and take nothing. The pages of one prompt need not meet all three."""
    def health():
        return json.loads(a.ask("GET", "/quire/health")[2])

    limit(cluster, 1, "noeviction")
    a.complete(TEXT[40000:42500], 1)
    expect(a.wait(lambda: health()["status"] == "degraded") and "refuse pages" in health()["why"] and health()["remote_nodes_refusing"] > 0, "a full cluster degrades", str(health()))
    figures = a.metrics()
    expect(re.search(r"\nquire_store_nodes_refusing [123]\n", figures) and "\nquire_serve_degraded 1\n" in figures, "its figures say so", figures[:600])
    expect(a.wait_text("does not take pages: it says OOM."), "and a line on stderr", a.text()[-500:])
    limit(cluster, 0, "noeviction")
    for begin in range(43000, 63000, 2500):
        a.complete(TEXT[begin:begin + 2500], 1)
        if a.wait(lambda: health()["status"] == "ok", 5):
            break
    expect((health()["status"], health()["remote_nodes_refusing"]) == ("ok", 0), "with room again all is well", str(health()))


def one_master_killed(cluster, a, b):
    """Of a prompt that b does not have on its disk."""
    prompt = TEXT[4000:5600]
    keys = cluster.keys()
    first = a.complete(prompt)
    whole = (total(first) - 1) // 64 * 64
    expect(a.wait_figure("saves", 2) and wait_keys(cluster, keys + whole // 64), "a second prompt is in the cluster")
    victim = max(range(3), key=lambda i: int(cluster.command(i, "DBSIZE")))
    cluster.kill(victim)
    begin = time.monotonic()
    second = b.complete(prompt)
    note(f"answered in {1e3 * (time.monotonic() - begin):.0f} ms, {second['timings']['cache_n']} of {whole} tokens restored, look-up {lines(b, 'lookup_ms')[-1]} ms")
    same = first["content"]
    if second["timings"]["cache_n"]:  # by one that keeps nothing: a would restore the rest from its disk
        with Sidecar("none", "-t", "1", "-np", "2", options=("--kv", "none")) as alone:
            same = warm(alone, prompt, second["timings"]["cache_n"])
    expect(second["content"] == same, "kill -9 of the master that has most keys: the same text", f"{same!r} {second['content']!r}")
    expect(lines(b, "lookup_ms")[-1] + lines(b, "load_ms")[-1] < 2 * LIMIT_MS + 900, "within the limits of the store")
    cluster.start(victim)
    cluster.wait_well()


def ask_without(a, how, begin, slow):
    """A node costs requests at most a second each, until the store leaves it alone: after three failures, of which most are those of its own
    probes in the background. Half a second is no wait for a node, but a busy machine."""
    lookups = []
    while len(lookups) < 5 or (max(lookups[-2:]) > 500 and len(lookups) < slow + 2):
        k = len(lookups)
        answer = a.complete(f"{k}. {TEXT[begin + 500 * k:begin + 500 * k + 700]}", 1)
        expect(total(answer) > 128, f"request {k} to a {how} cluster is answered", str(answer)[:200])
        lookups.append(lines(a, "lookup_ms")[-1])
    note(f"look-ups with a {how} cluster: {lookups} ms")
    expect(max(lookups) < LIMIT_MS + 900, "none costs more than the limit", str(lookups))
    expect(sum(v > 500 for v in lookups) <= slow and max(lookups[-2:]) <= 500, f"at most {slow} requests wait for a {how} cluster, and then none", str(lookups))


def cluster_killed(cluster, a, hasty):
    for p in cluster.processes:
        p.send_signal(signal.SIGSTOP)
    hasty.complete(TEXT[8000:8700], 1)
    expect(lines(hasty, "lookup_ms")[-1] < 950, "--timeout 200 ends a look-up earlier", str(lines(hasty, "lookup_ms")))
    ask_without(a, "silent", 8000, 9)
    for i in range(3):
        cluster.kill(i)
    ask_without(a, "dead", 18000, 0)
    a.wait(lambda: b"degraded" in a.ask("GET", "/quire/health")[2])
    health = a.ask("GET", "/quire/health")
    expect(health[0] == 200 and b"remote tier" in health[2], "health says what degrades", str(health[2]))
    expect("\nquire_serve_degraded 1\n" in a.metrics(), "its figures too", a.metrics()[:600])
    expect(a.wait_text("is considered down. quire store doctor --remote"), "and lines on stderr, with what to do", a.text()[-500:])
    again = a.complete(TEXT[:1600])
    expect(again["timings"]["cache_n"] > 256, "what the disk has is restored all the same", str(again["timings"]))


def run():
    try:
        with Cluster(3) as cluster:
            part(run_with, cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))

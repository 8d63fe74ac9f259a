#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tokens that quire serve takes for those of a request are the server's own: 100 bodies of each form (tests/serve/bodies), counted by the
real llama-server with several chat templates, and answered through quire serve, where the server's counts and its slots are looked at.

--quick: three templates, and every eighth body is answered. Without it: all templates that llama.cpp's source has, all bodies, and the tokens of
each prompt are compared with those in its slot file.
"""
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sidecar import Sidecar, kit

expect, note, part = kit.expect, kit.note, kit.part
QUICK = "--quick" in sys.argv
FEW_TEMPLATES = {"meta-llama-Llama-3.1-8B-Instruct.jinja"}  # of all, with --quick
COUNT = {"messages": "/v1/messages/count_tokens", "responses": "/v1/responses/input_tokens", "chat": "/v1/chat/completions/input_tokens"}


# A line that a client puts before its system prompt, with a stamp that changes, which the server overwrites.
STAMP = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch={};"


def bodies(form):
    lines = (Path(__file__).parent / "bodies" / f"{form}.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    if form == "messages":
        for stamp in ("a5145", "0f3b9", "longer00"):
            for system in (STAMP.format(stamp) + "You work in a terminal.", [{"type": "text", "text": STAMP.format(stamp)}, {"type": "text", "text": "You work."}]):
                body = {"max_tokens": 1, "system": system, "messages": [{"role": "user", "content": "Hi"}]}
                made.append({"path": "/v1/messages", "watched": True, "body": body})
    return made


def converted(form, all_of):
    """What quire serve would have the template made of, or None."""
    program = os.environ.get("QUIRE_CONVERT") or str(kit.ROOT / "build/release/bin/serve_convert")
    if not Path(program).exists():
        raise kit.Absent(f"no {program}")
    lines = "".join(f"{form} {json.dumps(b['body'])}\n" for b in all_of)
    done = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


class Server:
    """A llama-server alone."""

    def __init__(self, *flags):
        self.port = kit.free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(kit.programs() / "llama-server"), "-m", kit.model("smollm2-135m"), "-c", "1024", "-np", "1", "--no-warmup",
                                         "--port", str(self.port), "-t", str(kit.threads), *flags], stdout=self.log, stderr=self.log)
        end = time.monotonic() + 180
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                self.__exit__()
                raise kit.Broken("llama-server does not start: " + self.log.read()[-1500:])
            try:
                if self.ask("/health", None)[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.1)

    def ask(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            c.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, json.loads(r.read())
        finally:
            c.close()

    def tokens(self, chat):
        """As quire serve finds them; None: the server refuses the request."""
        status, answer = self.ask("/apply-template", chat)
        if status != 200:
            return None
        return self.ask("/tokenize", {"content": answer["prompt"], "add_special": True, "parse_special": True})[1]["tokens"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()


def counted(template):
    """The server's own count of each body, without computing any."""
    flags = ["--chat-template-file", str(template)] if template else []
    with Server(*flags) as server, ThreadPoolExecutor(2) as pool:
        for form, path in COUNT.items():
            of = bodies(form)
            chats = [b["body"] if b["watched"] else None for b in of] if form == "chat" else converted(form, of)

            def compare(pair):
                b, chat = pair
                status, answer = server.ask(path, b["body"])
                own = answer["input_tokens"] if status == 200 else None
                ours = server.tokens(chat) if chat else None
                return own, None if ours is None else len(ours)

            counts = list(pool.map(compare, zip(of, chats)))
            wrong = [(i, own, ours) for i, (own, ours) in enumerate(counts) if ours is not None and own != ours]
            lost = [i for i, (own, ours) in enumerate(counts) if own is not None and ours is None and of[i]["watched"]]
            unsure = [i for i, c in enumerate(chats) if c and not of[i]["watched"]]
            n = sum(ours is not None for _, ours in counts)
            name = template.name if template else "the model's template"
            expect(not wrong, f"{form}, {name}: {n} counts are the server's", f"(body, the server's count, ours) {wrong[:10]}")
            expect(not lost and not unsure, f"{form}, {name}: what can be watched is", f"not watched {lost[:10]}, watched {unsure[:10]}")


def all_templates():
    done = subprocess.run([str(kit.ROOT / "scripts/get-llama"), "--source"], stdout=subprocess.PIPE, text=True)
    folder = Path(done.stdout.strip() or "/nowhere") / "models/templates"
    return sorted(p for p in folder.glob("*.jinja") if not QUICK or p.name in FEW_TEMPLATES)


def settled(s, before, status):
    """The figures after a request: they are counted when its answer has ended."""
    for _ in range(1200):
        after = s.figures()
        rise = {k: after[k] - before[k] for k in after}
        if status != 200 or rise["unwatched"] or rise["prompt_tokens"]:
            break
        time.sleep(0.05)
    return rise


def answered(*flags):
    """Each body through quire serve: watched or not as said, the server's count equal, the slot the one that was meant."""
    store = tempfile.mkdtemp(prefix="quire-bodies.")
    try:
        with Sidecar(store, *flags, options=("--kv", "none", "--min-tokens", "64")) as s:
            for form in ("messages", "responses", "chat", "text"):
                of = bodies(form)
                if QUICK:
                    of = [b for b in of[:80] if len(json.dumps(b)) < 1000][:3] + of[-3:]
                answered_form(s, form, of)
            figures = s.figures()
            expect(figures["miscounted"] == 0 and figures["saves_refused"] == 0 and figures["restores_short"] == 0 and figures["unsteered"] == 0,
                   f"{' '.join(flags)}: no slot held other tokens than those of its prompt", str(figures))
            note(f"{figures['saves']} slot files began with the tokens of the prompt")
    finally:
        shutil.rmtree(store, ignore_errors=True)


def answered_form(s, form, of):
    wrong, refused = [], 0
    for i, b in enumerate(of):
        before = s.figures()
        status, _, answer = s.ask("POST", b["path"], b["body"])
        rise = settled(s, before, status)
        watched = rise["watched"] == 1 and rise["unwatched"] == 0
        told = rise["prompt_tokens"] > 0 and rise["miscounted"] == 0
        refused += status != 200
        if status == 200 and (watched != b["watched"] or (watched and not told)):
            wrong.append((i, status, {k: v for k, v in rise.items() if v}, answer[:200]))
        if not QUICK and watched and rise["prompt_tokens"] >= 64:  # its slot is saved before the next request takes it
            s.wait_figure("saves", before["saves"] + 1, 3)
    expect(not wrong, f"{form}: {len(of)} bodies are answered and counted as said", str(wrong[:5]))
    note(f"{refused} of them were refused by the server")


def run():
    part(counted, None)
    for template in all_templates():
        part(counted, template)
    part(answered, "-np", "2")
    if not QUICK:
        part(answered, "-np", "1")


if __name__ == "__main__":
    sys.exit(kit.main(run))

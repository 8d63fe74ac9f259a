#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire serve --tenants with the real llama-server: prompts of one tenant are never reused for another, warm or from the store; a stranger gets
nothing and leaves nothing; what shows others' requests is refused."""
import base64
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

from sidecar import Sidecar, kit

expect, part = kit.expect, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
PROMPT = TEXT[:700]
KEYS = {"ann": "sk-ann-0123456789", "bob": "sk-bob-0123456789", "ann2": "sk-ann-another", "watcher": "sk-figures"}
folder = Path(tempfile.mkdtemp(prefix="quire-tenants-test."))


def write(path, text, mode=0o600):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def digest(name):
    return hashlib.sha256(KEYS[name].encode()).hexdigest()


def write_tenants(*names):
    lines = ["# key, secret, name"]
    for name in names:
        lines.append(f"{digest(name)} {'-' if name == 'watcher' else name[:3] + '.key'} {name}")
    return write(folder / "tenants", "\n".join(lines) + "\n")


def model():
    return kit.made_model("--layers", "2", "--heads", "4", "--kv-heads", "2", "--head-size", "64", "--embd", "256", "--ffn", "256", "--ctx", "4096")


def start(store, *flags):
    return Tenants(folder / store, "-m", model(), "-t", "1", *flags, options=("--kv", "none", "--tenants", str(folder / "tenants"), "--min-tokens", "64"))


class Tenants(Sidecar):
    def metrics(self):
        return self.ask("GET", "/quire/metrics", headers={"Authorization": f"Bearer {KEYS['watcher']}"})[2].decode()

    def post(self, name, path, body, **headers):
        key = {"Authorization": f"Bearer {KEYS.get(name, name)}"} if name else {}
        status, _, answer = self.ask("POST", path, body, {**key, **headers})
        return status, answer

    def reused(self, name, prompt=PROMPT, **more):
        """Tokens of the prompt that were reused."""
        status, answer = self.post(name, "/completion", {"prompt": prompt, "n_predict": 4, "temperature": 0, **more})
        if status != 200:
            raise kit.Broken(f"status {status}: {answer[:300]}")
        return json.loads(answer)["timings"]["cache_n"]


def apart():
    """One slot, so that whoever comes next gets the slot that the other has left."""
    with start("one", "-np", "1") as s:
        expect(s.reused("ann") <= 1, "the first request computes all")
        warm = s.reused("ann")
        expect(warm > 200, "the same tenant reuses the slot", str(warm))
        expect(s.reused("bob") == 0, "another tenant does not")
        expect(s.reused("ann") == 0 or s.figures()["restores"] > 0, "nor the first one after that, unless it was restored")
        s.reused("bob")
        for key in ("sk-unknown", None, ""):
            expect(s.reused(key) == 0, f"a stranger reuses nothing: {key!r}")
        expect(s.reused("sk-unknown", cache_prompt=True, id_slot=0) == 0, "whatever it asks for")
        expect(s.reused("sk-unknown") == 0, "not even its own")
        strangers = s.figures()["strangers"]
        expect(strangers >= 5, "strangers are counted", str(strangers))
        found = s.reused("bob")
        expect(found == 0 or s.figures()["restores"] > 0, "a tenant reuses nothing of a stranger's", str(found))


def blind_requests():
    """Requests whose tokens are not known, between those of a tenant."""
    with start("blind", "-np", "2") as s:
        messages = [{"role": "user", "content": PROMPT}]
        blind = (("/completion", {"prompt": [PROMPT, PROMPT], "n_predict": 1}), ("/completion", {"prompt": PROMPT, "n_predict": 1, "n": 2}),
                 ("/v1/messages", {"messages": messages, "max_tokens": 1, "cache_prompt": True}),
                 ("/v1/responses", {"input": PROMPT, "max_output_tokens": 1, "cache_prompt": True, "id_slot": 0}),
                 ("/completion", {"prompt": PROMPT, "n_predict": 1, "cache_prompt": False}))
        for path, body in blind:
            for other in ("bob", "sk-unknown"):
                for _ in range(2):
                    s.reused("ann", PROMPT)
                before = s.figures()
                status, answer = s.post(other, path, body)
                told = json.loads(answer)
                told = told if isinstance(told, list) else [told]
                counts = [t["timings"]["cache_n"] for t in told if "timings" in t]
                counts += [t["usage"].get("cache_read_input_tokens", 0) or t["usage"].get("input_tokens_details", {}).get("cached_tokens", 0)
                           for t in told if "usage" in t]
                expect(status == 200 and max(counts, default=0) == 0, f"{path} of {other} reuses nothing", answer[:400])
                again = s.reused("ann")
                after = s.figures()
                expect(again == 0 or again > 200, "afterwards a tenant has its own", str(again))
                expect(after["miscounted"] == before["miscounted"] == 0, "counts are right")
        seen = []
        threads = [threading.Thread(target=lambda i=i: seen.append(s.post(("ann", "bob")[i % 2], *blind[i % len(blind)])[0])) for i in range(10)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        expect(seen == [200] * 10, "ten at once are all answered", str(seen))


def empty_prompts():
    """The server answers a prompt without tokens and leaves in the slot what it held, which it even counts."""
    with start("empty", "-np", "2") as s:
        for i, prompt in enumerate(([[]], "", [])):
            secret = f"{i}. {PROMPT}"
            own = s.reused("ann", secret), s.reused("ann", secret)
            expect(own[1] > 200, "a tenant finds its own slot warm", str(own))
            for _ in range(4):
                status, answer = s.post("bob", "/completion", {"prompt": prompt, "n_predict": 0})
                told = json.loads(answer) if status == 200 else {}
                told = told[0] if isinstance(told, list) else told
                expect(told.get("tokens_cached", 0) < 8, f"an empty prompt does not tell how long another's is, {prompt!r}", answer[:300])
            reused = s.reused("bob", secret)
            expect(reused < 8, f"nor does it make another's slot one's own, {prompt!r}", str(reused))


def refused():
    with start("refused") as s:
        key = {"Authorization": f"Bearer {KEYS['ann']}"}
        for method, path in (("GET", "/slots"), ("GET", "/%73lots"), ("GET", "//slots"), ("GET", "/metrics"), ("GET", "/v1/stream?conv_id=x"),
                             ("POST", "/v1/streams/lookup"), ("DELETE", "/v1/stream"), ("POST", "/v1/chat/completions/control"), ("POST", "/props"),
                             ("POST", "/slots/0?action=save"), ("GET", "/lora-adapters"), ("POST", "/predict"), ("GET", "/v1/models%00/slots")):
            status, _, answer = s.ask(method, path, {} if method == "POST" else None, key)
            expect(status == 403, f"{method} {path} is refused", f"{status} {answer[:200]}")
        for path in ("/v1/models", "/health", "/props"):
            expect(s.ask("GET", path, headers=key)[0] == 200, f"GET {path} is not")
        expect(s.ask("GET", "/quire/metrics", headers=key)[0] == 401, "figures are not for tenants")
        expect(s.ask("GET", "/quire/health")[0] == 200, "health is for all")
        for body in (b"\x00", b'{"prompt":"x","id_slot":0}\x00', b"[1]", b'{"prompt":"x"} x'):
            expect(s.post("ann", "/completion", body)[0] == 400, f"{body!r} is refused")
        broken = write(folder / "tenants", "nonsense\n")
        s.process.send_signal(signal.SIGHUP)
        expect(s.wait_figure("tenants_unread", 1) and s.figures()["tenants_unread"] == 1, "and is counted", str(s.figures()))
        expect(s.wait_text("stay as they were") and s.ask("GET", "/v1/models", headers=key)[0] == 200, "a broken file changes nothing", s.text()[-300:])
        broken.unlink()


def incompressible(store):
    """The share of blocks of the store's data that cannot be compressed. Rows that are not encrypted can."""
    blocks = []
    for path in store.rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 19 and "index" not in path.name:
            data = path.read_bytes()
            blocks += [b for b in (data[i:i + 4096] for i in range(0, len(data), 4096)) if b.count(0) < 1024]
    return sum(len(zlib.compress(b)) >= len(b) for b in blocks) / max(len(blocks), 1)


def restored():
    """After a restart each gets its own from the store, on another server with the same secrets too."""
    write_tenants("ann", "watcher")
    with start("kept") as s:
        s.reused("ann")
        expect(s.wait_figure("saves", 1), "the prompt is saved", s.text()[-500:])
        expect(s.reused("bob") == 0 and s.figures()["strangers"] == 1, "a tenant that is not yet named is a stranger")
        write_tenants("ann", "bob", "ann2", "watcher")
        s.process.send_signal(signal.SIGHUP)
        expect(s.wait_text("has 4 keys"), "the file is read again", s.text()[-300:])
        expect(s.reused("bob") == 0 and s.figures()["strangers"] == 1, "after SIGHUP it is one", s.text()[-300:])
        s.reused("bob", TEXT[2000:2700])
    with start("kept") as s:
        own = s.reused("ann2")
        expect(own >= 192 and s.figures()["restores"] == 1, "after a restart a tenant gets its own, by another of its keys", str(own))
        expect(s.reused("bob") >= 192 and s.figures()["restores"] == 2, "and so does the other")
        expect(s.reused("ann", TEXT[2000:2700]) <= 1, "but not what only the other has asked")
        expect(s.reused("sk-unknown") == 0, "a stranger gets nothing")
    share = incompressible(folder / "kept")
    expect(share > 0.9, "pages on disk are encrypted", f"{share:.3f} of their blocks look random")
    with Sidecar(folder / "kept", "-m", model(), "-t", "1", options=("--kv", "none", "--secret-file", str(folder / "ann.key"))) as s:
        found = s.complete(PROMPT)["timings"]["cache_n"]
        expect(found >= 192, "a server with the tenant's secret alone shares its prompts", str(found))


def gone():
    """A tenant that has left: what its slots hold is not saved any more, so that what is removed stays removed."""
    write_tenants("ann", "bob", "watcher")
    with start("gone", "-np", "2", "-c", "8192") as s:
        s.reused("bob")
        expect(s.wait_figure("saves", 1), "its prompts are saved", s.text()[-500:])
        write_tenants("ann", "watcher")
        seen = s.figures()["watched"]
        asked = threading.Thread(target=lambda: s.reused("bob", TEXT[:1500], n_predict=2500, ignore_eos=True))  # some seconds
        asked.start()
        expect(s.wait_figure("watched", seen + 1) and asked.is_alive(), "its last request is being answered")
        s.process.send_signal(signal.SIGHUP)
        expect(s.wait_text("has 2 keys") and asked.is_alive(), "and meanwhile it has left", s.text()[-500:])
        asked.join()
        s.reused("ann", TEXT[4000:4700])
        expect(s.wait_figure("saves", 2), "those of others are", s.text()[-500:])
        n = s.figures()
    write_tenants("ann", "bob", "watcher")
    with start("gone") as s:
        expect(s.reused("bob", TEXT[:1500]) < 600 and s.reused("ann", TEXT[4000:4700]) >= 192, "its last prompt is not in the store", str(n))


def forms(tokens):
    """What may be in no log and no file, by name: the ways in which the prompt, the secrets and the keys could be written."""
    found = {"the prompt's text": PROMPT[100:130].encode(), "its end": PROMPT[-30:].strip().encode()}
    for name, key in KEYS.items():
        found[f"the API key of {name}"] = key.encode()
    for name in ("ann", "bob", "wrong"):
        data = (folder / f"{name}.key").read_bytes()[:15]
        for how, form in (("raw", data), ("in hex digits", data.hex().encode()), ("in base64", base64.b64encode(data))):
            found[f"the secret of {name} {how}"] = form
    for i in (0, 62, 64, len(tokens) - 4):
        run = tokens[i:i + 4]
        for kind in ("<I", ">I", "<Q"):
            found[f"tokens from {i} as {kind}"] = b"".join(struct.pack(kind, t) for t in run)
        for between in (" ", ",", ", "):
            found[f"tokens from {i} with {between!r}"] = between.join(map(str, run)).encode()
    return found


def own_lines(text):
    """Without those of llama-server, which begin with its time."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"\d+\.\d\d\.\d{3}\.\d{3} ", line)).encode()


def traces():
    """Prompts, tokens, secrets and keys are in no line of quire serve and in no file of the store, also where something is wrong with them."""
    write(folder / "wrong.key", os.urandom(31))
    write_tenants(*KEYS)
    with start("sealed", "-np", "2") as s:
        tokens = json.loads(s.post("ann", "/tokenize", {"content": PROMPT, "add_special": True})[1])["tokens"]
        for name in ("ann", "bob", "ann", "sk-of-nobody"):
            s.reused(name)
        expect(s.wait_figure("saves", 2), "the prompts are saved", s.text()[-500:])
        s.post("ann", "/completion", json.dumps({"prompt": PROMPT}).encode()[:-3])
        s.post("ann", "/completion", {"prompt": PROMPT, "n_predict": "x" + PROMPT})
        s.ask("POST", "/completion", {"prompt": PROMPT}, {"Authorization": f"Bearer {KEYS['ann']}", "X-Api-Key": KEYS["bob"]})
        s.post("ann", f"/{KEYS['ann']}?key={KEYS['ann']}", {"prompt": PROMPT})
        for n, wrong in enumerate((f"{KEYS['ann']} ann.key ann", f"{digest('ann')} wrong.key ann", f"{digest('ann')} {KEYS['ann']}"), 1):
            write(folder / "tenants", wrong + "\n")
            s.process.send_signal(signal.SIGHUP)
            expect(s.wait_figure("tenants_unread", n), "a file that is wrong is not taken")
        s.kill_server()
        s.reused("ann")
        sealed = own_lines(s.text())
    with Sidecar(folder / "plain", "-m", model(), "-t", "1", options=("--kv", "none", "--min-tokens", "64", "--secret-file", str(folder / "ann.key"))) as s:
        for _ in range(2):
            s.ask("POST", f"/completion?key={KEYS['bob']}", {"prompt": PROMPT, "n_predict": 1}, {"Authorization": f"Bearer {KEYS['ann']}"})
        expect(s.wait_figure("saves", 1), "without tenants it is saved too", s.text()[-500:])
        plain = own_lines(s.text())
    wanted = forms(tokens)
    planted = PROMPT.encode() + f"{tokens} {KEYS}".encode() + (folder / "ann.key").read_bytes() + struct.pack("<4I", *tokens[:4])
    expect(sum(form in planted for form in wanted.values()) >= 9, "the search finds what is there")
    for name, text in (("sealed", sealed), ("plain", plain)):
        expect(text.count(b"path=/completion") >= 2, f"{name}: the log has a line for each request", text[-500:])
        found = [what for what, form in wanted.items() if form in text]
        expect(not found, f"{name}: the log has no prompt, no secret and no key", f"{found} {text[-2000:]}")
        files = [p for p in (folder / name).rglob("*") if p.is_file() and p.name != "serve.key"]
        found = [(p.name, what) for p in files for data in [p.read_bytes()] for what, form in wanted.items() if form in data]
        expect(len(files) >= 3 and not found, f"{name}: nor has one of {len(files)} files of the store", str(found[:10]))
    write_tenants(*KEYS)


def run():
    try:
        for name in ("ann", "bob"):
            write(folder / f"{name}.key", os.urandom(32))
        write_tenants(*KEYS)
        part(apart)
        part(blind_requests)
        part(empty_prompts)
        part(refused)
        part(restored)
        part(gone)
        part(traces)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))

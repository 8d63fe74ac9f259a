#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire serve with the real llama-server: a prompt that was computed once is restored after a restart, with the same text; what is passed
through is passed through; whatever is killed, the rest goes on or ends."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sidecar import Sidecar, kit, tool

expect, note, part = kit.expect, kit.note, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
PROMPT = TEXT[:1600]  # about 400 tokens
store = Path(tempfile.mkdtemp(prefix="quire-serve-test."))


def restored(*options):
    """Computed, stopped, started again, restored; in the cache of Quire's device and in llama-server's own."""
    with Sidecar(store, options=options) as s:
        first = s.complete(PROMPT)
        n = first["timings"]["prompt_n"] + first["timings"]["cache_n"]
        expect(s.wait_figure("saves", 1), f"the prompt is saved, {options}", s.text()[-1500:])
        warm = s.complete(PROMPT)
    expect(s.ended == 0, f"it stops cleanly, {options}", f"status {s.ended}")
    expect(warm["content"] == first["content"], "a warm slot gives the same text")
    with Sidecar(store, options=options) as s:
        second = s.complete(PROMPT)
        whole = (n - 1) // 64 * 64
        expect(second["timings"]["cache_n"] == whole and second["timings"]["prompt_n"] == n - whole,
               f"after a restart {whole} of {n} tokens are restored, {options}", str(second["timings"]))
        expect(second["content"] == first["content"], "the text is the same", f"{first['content']!r} {second['content']!r}")
        loaded = sum(int(line.split()[1]) for line in s.ask("GET", "/quire/metrics")[2].decode().splitlines() if line.startswith("quire_store_loaded_bytes_total"))
        row = 384 if "none" in options else 204  # f16, or the codes of 3 heads of 64 with their scales and a mark
        expect(loaded == whole * 30 * 2 * row, f"pages have {row} bytes for a row, {options}", f"{loaded} bytes of {whole} tokens")
        chat = {"messages": [{"role": "user", "content": PROMPT + " Say it in one sentence."}], "max_tokens": 4, "temperature": 0}
        status, _, answer = s.ask("POST", "/v1/chat/completions", chat)
        expect(status == 200 and s.figures()["miscounted"] == 0, "the tokens of a chat are those that the server counts", answer[:300])
        expect(s.figures()["restores"] == 1 and s.figures()["restores_short"] == 0, "it counts what it did", str(s.figures()))


def never_idle():
    """Requests come one after the other, and their prompts do not fit into the slots: what a request would overwrite is saved before."""
    with Sidecar(store / "busy", "-np", "1") as s:
        texts = [[s.complete(TEXT[at:at + 1600])["content"] for at in (3000, 6000)] for _ in range(2)]
        expect(s.figures()["restores"] == 2, "prompts are restored though the server is never idle", str(s.figures()))
        expect(texts[0] == texts[1], "with the same texts", str(texts))


def passed_through():
    with Sidecar(store) as s:
        status, headers, body = s.ask("GET", "/v1/models")
        expect(status == 200 and json.loads(body)["data"] and "application/json" in headers.get("Content-Type", ""), "GET /v1/models")
        expect(s.ask("GET", "/nowhere")[0] == 404, "what the server does not know stays a 404")
        status, _, body = s.ask("POST", "/completion", b"{not json")
        expect(status in (400, 500), "broken JSON is for the server to refuse", f"{status} {body[:200]}")
        for path in ("/slots/0?action=erase", "/%73lots/0?action=save", "//slots/0?action=restore"):
            expect(s.ask("POST", path, {"filename": "x"})[0] in (400, 403), f"slots are not for clients: {path}")
        expect(s.complete("Hello", id_slot=77)["id_slot"] < 8, "a client's id_slot does not count")
        status, headers, body = s.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True})
        events = [line for line in body.decode().splitlines() if line.startswith("data: ")]
        expect(status == 200 and "text/event-stream" in headers.get("Content-Type", "") and events[-1] == "data: [DONE]" and len(events) > 3,
               "a stream arrives event by event", body[-300:])
        expect(s.figures()["watched"] >= 2 and s.figures()["miscounted"] == 0, "watched requests are counted", str(s.figures()))


def prefixed():
    """With --api-prefix all paths of the server begin with it, those that quire serve asks for too."""
    keys = store / "keys"
    keys.write_text("# a comment\n\nk1\n")
    with Sidecar(store, "--api-prefix", "/llama", "--api-key-file", str(keys)) as s:
        request = {"prompt": TEXT[5000:6600], "n_predict": 2}
        expect(s.ask("POST", "/llama/completion", request)[0] == 401, "the server asks for its key")
        status, _, answer = s.ask("POST", "/llama/completion", request, headers={"Authorization": "Bearer k1"})
        expect(status == 200 and s.figures()["watched"] == 1, "a prefix of all paths", answer[:300])
        expect(s.wait_figure("saves", 1), "prompts are saved there too", s.text()[-1500:])


def client_leaves():
    """The server stops computing when the client goes, before the first byte too."""
    with Sidecar(store) as s:
        request = json.dumps({"prompt": TEXT[20000:26000], "n_predict": 400, "temperature": 0}).encode()
        c = socket.create_connection(("127.0.0.1", s.port))
        c.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(request) + request)
        time.sleep(1)
        c.close()
        gone = time.monotonic()
        expect(s.wait_figure("left", 1, 60), "a client that leaves is seen", str(s.figures()))
        note(f"seen after {1e3 * (time.monotonic() - gone):.0f} ms at most")
        answer = s.complete("The capital of France is", 4)
        expect("Paris" in answer["content"], "the next request is answered", str(answer)[:300])


def killed():
    with Sidecar(store) as s:
        s.complete(PROMPT)
        old = s.server()
        for pid in (s.process.pid, old):
            os.kill(pid, signal.SIGHUP)
        expect(s.complete(PROMPT)["timings"]["prompt_n"] < 200 and s.server() == old, "SIGHUP ends neither quire serve nor its server")
        s.kill_server()
        expect(s.server() not in (None, old), "a killed server is started again")
        expect(s.complete(PROMPT)["timings"]["prompt_n"] < 200, "and its prompts are restored")
        server, left = s.server(), s.folder()
        s.process.kill()
        s.process.wait()
        expect(s.wait(lambda: not Path(f"/proc/{server}").exists()), "the server ends with a killed quire serve")
    expect(left and left.exists(), "a killed quire serve leaves its folder")
    with Sidecar(store) as s:
        expect("Paris" in s.complete("The capital of France is", 4)["content"], "after that it starts again")
        expect(not left.exists(), "and removes that folder", str(left))
        mine = s.folder()
    expect(mine and not mine.exists(), "nothing is left after a clean stop", str(mine))


def little_memory():
    """As in containers, where /dev/shm often has 64 MiB."""
    mount = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" "$@"')
    if subprocess.run([*mount, "true"], stderr=subprocess.DEVNULL).returncode:
        note("no /dev/shm of 64 MiB: mounting is not allowed here")
        return
    with Sidecar(store, before=mount) as s:
        expect(str(s.folder()).startswith("/tmp/"), "slot files are in /tmp if /dev/shm is small", str(s.folder()))


def refused():
    def run(*words, env=None):
        done = subprocess.run([tool(), "serve", "--store", str(store), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60, env={**os.environ, "QUIRE_PLUGIN": str(kit.plugin()), **(env or {})})
        return done.returncode, done.stderr.strip()

    server, model = str(kit.programs() / "llama-server"), kit.model("smollm2-135m")
    other = "give the file with -m"
    for flags, words in ((("--context-shift",), "shifts slots"), (("--cache-reuse", "64"), "re-uses"), (("--lora", "x"), "LoRA"),
                         (("--kv-unified",), "unified"), (("--ssl-key-file", "x"), "TLS"), (("--slot-save-path", "/tmp"), "slot files"),
                         (("-hf", "a/b"), other), (("-hfr", "a/b"), other), (("--hf_repo", "a/b"), other), (("-hff", "x"), other), (("-mu", "x"), other),
                         (("-dr", "x"), other), (("--gpt-oss-20b-default",), other), (("--vision_gemma_4b_default",), other), (("--embd-gemma-default",), other),
                         (("--sleep-idle-seconds", "60"), "slots")):
        status, said = run("--", server, "-m", model, *flags)
        expect(status == 2 and words in said and said.count("\n") == 0, f"{flags[0]} is refused in one sentence", said)
    for name, value, words in (("LLAMA_ARG_CONTEXT_SHIFT", "1", "shifts slots"), ("LLAMA_ARG_HF_REPO", "a/b", other), ("LLAMA_ARG_HF_FILE", "x", other),
                               ("LLAMA_ARG_MODEL_URL", "x", other), ("LLAMA_ARG_DOCKER_REPO", "x", other), ("LLAMA_ARG_SLEEP_IDLE_SECONDS", "9", "slots")):
        status, said = run("--", server, "-m", model, env={name: value})
        expect(status == 2 and words in said, f"{name} is refused too", said)
    parts = store / "parts"
    parts.mkdir()
    (parts / "m-00001-of-00002.gguf").symlink_to(model)
    status, said = run("--", server, "-m", str(parts / "m-00001-of-00002.gguf"))
    expect(status == 1 and "m-00002-of-00002.gguf, a part of the model" in said, "a model of which a part is missing is refused", said)
    status, said = run("--kv", "nonsense", "--", server, "-m", model)
    expect(status == 2 and "nonsense" in said, "a wrong policy is refused", said)
    status, said = run("--seal-disk", "--", server, "-m", model)
    expect(status == 2 and "--secret-file" in said, "--seal-disk needs a secret that is not beside the pages", said)
    expect(run()[0] == 2, "without a server it is a wrong command line")


def run():
    try:
        part(restored)
        part(restored, "--kv", "none")
        part(never_idle)
        part(passed_through)
        part(prefixed)
        part(client_leaves)
        part(killed)
        part(little_memory)
        part(refused)
    finally:
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire serve with the real llama-server: rows are kept only under the names of the model and the settings that they are of. Flags in llama.cpp's
config.ini count like others; a server that is started again with another model, or without Quire's device, gets nothing and leaves nothing."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sidecar import Sidecar, kit, tool

expect, part = kit.expect, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
PROMPT, OTHER = TEXT[:1600], TEXT[8000:9600]
store = Path(tempfile.mkdtemp(prefix="quire-serve-test."))


def configured():
    """A config.ini in XDG_CONFIG_HOME: what makes rows untrue is refused, what quire serve does itself is taken from it, the rest is the server's."""
    server, model = str(kit.programs() / "llama-server"), kit.model("smollm2-135m")
    file = store / "config/llama.cpp/config.ini"
    file.parent.mkdir(parents=True)
    env = {**os.environ, "QUIRE_PLUGIN": str(kit.plugin()), "XDG_CONFIG_HOME": str(store / "config")}
    for line, words in (("lora = /x.gguf", "LoRA"), ("[*]\ncontrol-vector=/x", "layers"), ("LLAMA_ARG_CACHE_REUSE=64", "re-uses"), ("no-context-shift = 0", "shifts"),
                        ("hf = a/b", "give the file with -m"), (" lora=/x.gguf", "cannot be understood")):
        file.write_text(f"; a comment\n{line}\n")
        done = subprocess.run([tool(), "serve", "--store", str(store / "pages"), "--", server, "-m", model], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120, env=env)
        said = done.stderr.strip()
        expect(done.returncode == 2 and words in said and str(file) in said and "\n" not in said, f"{line!r} in config.ini is refused in one sentence", said)
    port = kit.free_port()
    file.write_text(f"model = {model} ; no flag says it\nport = {port}\nalias = from-the-file\nnp = 2\nctx-size = 1024\n[other]\nlora = /x.gguf\n")
    with Sidecar(store / "pages", options=("--kv", "none"), server=[server, "-t", str(kit.threads)], port=port, env={"XDG_CONFIG_HOME": env["XDG_CONFIG_HOME"]}) as s:
        _, _, models = s.ask("GET", "/v1/models")
        expect(json.loads(models)["data"][0]["id"] == "from-the-file", "what is harmless in config.ini counts for the server", models[:300])
        _, _, props = s.ask("GET", "/props")
        said = json.loads(props)
        expect(said["total_slots"] == 2 and said["default_generation_settings"]["n_ctx"] == 1024, "slots and context of config.ini", props[:300])
        s.complete(PROMPT, 1)
        expect(s.wait_figure("saves", 1), "prompts are kept with it", s.text()[-1500:])


def replaced():
    """The model's file is replaced, and the server ends: the next one loads other weights of the same form."""
    model, other = store / "model.gguf", store / "other.gguf"
    shutil.copy(kit.model("smollm2-135m"), model)
    data = bytearray(model.read_bytes())
    data[-1000] ^= 0x11  # of a weight: tensors end the file
    other.write_bytes(data)
    with Sidecar(store / "of-model", model=str(model)) as s:
        s.complete(PROMPT, 1)
        expect(s.wait_figure("saves", 1), "a prompt is saved", s.text()[-1500:])
        os.rename(other, model)
        s.kill_server()
        found = s.complete(PROMPT, 1)["timings"]
        expect(found["cache_n"] == 0, "nothing is restored into another model", str(found))
        expect(s.complete(OTHER, 1)["timings"]["prompt_n"] > 200, "requests are answered")
        time.sleep(2)  # longer than slots wait for their saving
        figures = s.figures()
        expect(figures["saves"] == 1 and figures["restores"] == 0, "and nothing of it is saved", str(figures))
        said = [line for line in s.text().splitlines() if "cannot be kept" in line]
        expect(len(said) == 1 and str(model) in said[0], "a sentence says so", str(said))
        health = json.loads(s.ask("GET", "/quire/health")[2])
        expect(health["status"] == "degraded" and "cannot be kept" in health["why"], "health is degraded", str(health))


def without_device():
    """llama-server is started again without Quire's device, as after an upgrade that the device does not know: the slots have the same form and other rows."""
    mark, server = store / "no-device", store / "llama-server"
    server.write_text(f'#!/bin/sh\n[ -e {mark} ] && unset GGML_BACKEND_PATH\nexec {kit.programs() / "llama-server"} "$@"\n')
    server.chmod(0o755)
    with Sidecar(store / "of-device", server=[str(server), "-m", kit.model("smollm2-135m"), "-c", "2048", "-t", str(kit.threads)]) as s:
        s.complete(PROMPT, 1)
        expect(s.wait_figure("saves", 1), "a prompt is saved", s.text()[-1500:])
        mark.touch()
        s.kill_server()
        found = s.complete(PROMPT, 1)["timings"]
        said = [line for line in s.text().splitlines() if "cannot be kept" in line]
        expect(found["cache_n"] == 0 and s.figures()["restores"] == 0, "codes are not restored as f16", str(found))
        expect(len(said) == 1 and "other rows" in said[0], "a sentence says so", str(said))
        mark.unlink()
        s.kill_server()
        found = s.complete(PROMPT, 1)["timings"]
        expect(found["cache_n"] > 200 and s.figures()["restores"] == 1, "with the device prompts are restored again", str(found))


def run():
    try:
        part(configured)
        part(replaced)
        part(without_device)
    finally:
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))

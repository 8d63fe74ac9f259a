# SPDX-License-Identifier: MIT
"""An OpenAI server of the real vLLM with the connector, for scripts that measure: started, asked, watched and ended."""
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import run


class Server:
    """extra: kv_connector_extra_config; None: without the connector."""

    def __init__(self, model, extra, *flags, policy="r8", dtype="bfloat16", length=8192, memory=512 << 20, block=64, threads=None):
        self.port, self.folder = run.free_port(), tempfile.TemporaryDirectory(prefix="quire-vllm-server-")
        self.log_path = Path(self.folder.name) / "log"
        env = run.environment(Path(self.folder.name))
        env.update(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_LOGGING_LEVEL="INFO")
        if threads is not None:
            env["OMP_NUM_THREADS"] = str(threads)
        line = [run.made("get-vllm"), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "model", "--dtype", dtype,
                "--max-model-len", str(length), "--kv-cache-memory-bytes", str(memory), "--block-size", str(block), "--host", "127.0.0.1",
                "--port", str(self.port), "--enforce-eager", *flags]
        if policy:
            line += ["--additional-config", json.dumps({"quire": {"kv": policy}})]
        if extra is not None:
            line += ["--kv-transfer-config", json.dumps({
                "kv_connector": "QuireConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra})]
        self.log = open(self.log_path, "w")
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env, start_new_session=True)

    def wait(self, seconds=600):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.25)
        raise RuntimeError("the server does not become ready: " + self.text()[-3000:])

    def text(self):
        return self.log_path.read_text(errors="replace")

    def ask(self, method, path, body=None, timeout=600):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, None if body is None else json.dumps(body), {} if body is None else {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def complete(self, tokens, max_tokens=1, salt=None, timeout=600, give_up_after=None):
        """Milliseconds to the first token, and the text. give_up_after: closes the connection after so many seconds."""
        body = {"model": "model", "prompt": list(tokens), "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        if salt is not None:
            body["cache_salt"] = salt
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            began = time.monotonic()
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            if give_up_after is not None:
                c.sock.settimeout(give_up_after)
            r = c.getresponse()
            if r.status != 200:
                raise RuntimeError(f"status {r.status}: {r.read()[:500]!r}")
            first, text = None, ""
            for line in r:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(str(event))
                if event["choices"]:
                    first = first or 1e3 * (time.monotonic() - began)
                    text += event["choices"][0]["text"]
            return first, text
        finally:
            c.close()

    def figures(self):
        """The connector's figures, as vLLM's page of metrics has them."""
        text = self.ask("GET", "/metrics")[1].decode()
        found = {}
        for name, value in re.findall(r"^vllm:quire_(\w+)_total\{[^}]*\} (\S+)$", text, re.M):
            found[name] = found.get(name, 0) + float(value)
        preempted = re.findall(r"^vllm:num_preemptions_total\{[^}]*\} (\S+)$", text, re.M)
        found["preemptions"] = sum(map(float, preempted))
        return found

    def wait_saved(self, pages, seconds=120):
        """Until so many pages were handed to the store, and some time for the store itself."""
        end = time.monotonic() + seconds
        while self.figures().get("saved_pages", 0) < pages:
            if time.monotonic() > end:
                raise RuntimeError(f"not saved after {seconds} s: {self.figures()}")
            self.complete([5], 1)  # figures come with steps
            time.sleep(0.2)

    def resident_bytes(self):
        """Of the server and all processes that it started: all, and what is no file's."""
        total = anonymous = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == self.process.pid:  # its session
                    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", (status.parent / "smaps_rollup").read_text(), re.M))
                    total, anonymous = total + int(sizes["Rss"]) * 1024, anonymous + int(sizes["Anonymous"]) * 1024
            except (OSError, IndexError, KeyError):
                pass
        return total, anonymous

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self.folder.cleanup()

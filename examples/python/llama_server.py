#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Starts a stock llama-server with a compressed KV cache and asks it for a completion.

    python3 llama_server.py MODEL.gguf [--server llama-server] [--kv k8v4] [--tokens 24] [PROMPT]

The server is any llama.cpp with shared libraries, ggml 0.25 to 0.27 (docs/llama.cpp.md).
"""
from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import quire


def ask(port: int, path: str, body: "dict[str, object] | None" = None) -> "dict[str, object]":
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def wait_for(server: "subprocess.Popen[bytes]", port: int) -> None:
    while server.poll() is None:
        try:
            ask(port, "/health")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit(f"the server ended with exit code {server.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    parser.add_argument("--server", default="llama-server")
    parser.add_argument("--kv", default="safe", metavar="POLICY")
    parser.add_argument("--tokens", type=int, default=24)
    given = parser.parse_args()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["-m", given.model, "-c", "2048", "-np", "1", "--port", str(port)]
    # Checks the server and the model before anything is started. Raises RuntimeError if they do not fit together.
    environment = quire.llama_env(given.kv, program=given.server, arguments=arguments)
    server = subprocess.Popen([given.server, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(server, port)
        answer = ask(port, "/completion", {"prompt": given.prompt, "n_predict": given.tokens, "temperature": 0})
        print(given.prompt + str(answer["content"]))
        # Prints the counters that the device in the server publishes. This fails if the device was not loaded.
        print(quire.command("stat", "--json", str(server.pid)).strip())
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()

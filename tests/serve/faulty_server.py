#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A llama-server (REAL_SERVER) that does not do what the file FAULTS says, a word for each: "save" and "restore" of slots are refused; with "late" a save
is refused too, and its file is made half a second later. With "slow" completions begin a second late, also if the client has left meanwhile. With "forget" it says that it has reused less
of a prompt than it has."""
import ctypes
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

REFUSAL = b'HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}'


def read(c):
    """A whole request or answer with a Content-Length."""
    data = b""
    while True:
        head = data.find(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", data[:max(head, 0)], re.IGNORECASE)
        if head >= 0 and len(data) >= head + 4 + (int(length[1]) if length else 0):
            return data
        piece = c.recv(1 << 20)
        if not piece:
            return data
        data += piece


def less(m):
    cache, prompt = int(m[1]), int(m[2])
    other = 10 ** (len(m[1]) - 1)
    if cache < 64 or len(str(prompt + cache - other)) != len(m[2]):
        return m[0]
    return b'"cache_n":%d,"prompt_n":%d' % (other, prompt + cache - other)


def refuses(request, faults):
    action = re.match(rb"POST /slots/\d+\?action=(\w+)", request)
    if action and action[1] == b"save" and "late" in faults:
        name = json.loads(request.partition(b"\r\n\r\n")[2])["filename"]
        threading.Timer(0.5, lambda: (Path(line[line.index("--slot-save-path") + 1]) / name).write_bytes(b"late")).start()
        return True
    return bool(action) and action[1].decode() in faults


def serve(client):
    try:
        with client, socket.socket(socket.AF_UNIX) as real:
            request, faults = read(client), Path(os.environ["FAULTS"]).read_text().split()
            if refuses(request, faults):
                client.sendall(REFUSAL)
                return
            if request.startswith(b"POST /completion") and "slow" in faults:
                time.sleep(1)
            real.connect(line[at])
            real.sendall(request)
            answer = read(real)
            client.sendall(re.sub(rb'"cache_n":(\d+),"prompt_n":(\d+)', less, answer) if "forget" in faults else answer)
    except OSError:
        pass


if __name__ == "__main__":
    line = sys.argv[1:]
    at = line.index("--host") + 1
    mine, line[at] = line[at], line[at].replace("llama.sock", "real.sock")
    # PR_SET_PDEATHSIG, SIGKILL: it ends with this program, which is killed
    server = subprocess.Popen([os.environ["REAL_SERVER"], *line], preexec_fn=lambda: ctypes.CDLL(None).prctl(1, 9))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(mine)
    listening.listen(64)
    threading.Thread(target=lambda: os._exit(server.wait()), daemon=True).start()
    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a file in a Python that has vLLM 0.32.0 (scripts/get-vllm), with the plug-in of this source as if its wheel were installed.

    tests/vllm/run.py FILE [ARGUMENT...]      a file of this folder, or a path; @model stands for scripts/make-mlx-model

Environment: QUIRE_LIBRARY, the folder of libquire and libquire_vllm (build/release/lib). Exit status 77: vLLM or the model is not to be had
here.
"""
import os
import socket
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


_kept = []


def free_port():
    """As long as this process lives the system gives it to nobody else; a server, which listens with SO_REUSEADDR, can have it."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        s.setsockopt(socket.SOL_SOCKET, option, 1)
    _kept.append(s)
    return s.getsockname()[1]


def made(script, *arguments, by=(), **options):
    """What a script that makes something prints. by: the Python that runs it."""
    done = subprocess.run([*by, ROOT / "scripts" / script, *arguments], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        print(f"skipped: scripts/{script} ends with {done.returncode}")
        sys.exit(77 if done.returncode == 3 else 1)
    return done.stdout.strip().splitlines()[-1]


def announce(folder):
    """Writes what an installed wheel tells Python about its entry points."""
    project = tomllib.loads((ROOT / "plugins/vllm/pyproject.toml").read_text())["project"]
    info = folder / "quire_vllm-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
             for group, points in project["entry-points"].items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


def settings(env, paths):
    """The environment of vLLM's Python with these folders in its path."""
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    # One process, unless the test wants more; nothing is asked of any server.
    env.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    env.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    env.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the processor to other tests
    env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    return env


def environment(folder):
    announce(folder)
    env = settings(dict(os.environ), [folder, ROOT / "plugins/vllm", ROOT / "python", HERE])
    env.setdefault("QUIRE_LIBRARY", str(ROOT / "build/release/lib"))
    return env


def print_rows(script, arguments):
    """Runs a script of scripts/ in vLLM's Python, with the model. Lines that begin with ROW go to stdout, others to stderr."""
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [HERE / "run.py", ROOT / "scripts" / script, *arguments, "--model", "@model"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("ROW "):
                print(line[4:].rstrip(), flush=True)
            else:
                sys.stderr.write(line)
    return process.returncode


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    python = made("get-vllm")
    # vLLM's Python has the numpy that the script needs.
    arguments = [made("make-mlx-model", "smollm2-135m", by=[python]) if x == "@model" else x for x in sys.argv[2:]]
    file = HERE / sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="quire-vllm-") as folder:
        return subprocess.run([python, file if file.exists() else sys.argv[1], *arguments], env=environment(Path(folder))).returncode


if __name__ == "__main__":
    sys.exit(main())

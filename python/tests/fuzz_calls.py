#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random sequences of calls with hostile values, files, threads and interrupts, in a process that may not die.

    python/tests/run python/tests/fuzz_calls.py [--sequences N] [--seed S]      300 in about half a minute; the long form is 10000

hypothesis makes the sequences here, and shrinks one that fails; fuzz_worker.py executes them. After each sequence the worker compares
lengths and rows with a model in numpy, attends once more, and closes everything: no memory of the pool may be in use then. A timer raises
KeyboardInterrupt in a quarter of the calls. Because of it, and of the threads, a failure may not happen again at once; the calls are printed.
Exit status 1: something failed; 77: hypothesis is not to be had here.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import selectors
import subprocess
import sys
import tempfile
import time
from typing import Any, List, Optional

HERE = pathlib.Path(__file__).resolve().parent
found = subprocess.run([str(HERE.parents[1] / "scripts" / "python-venv"), "--hypothesis"], stdout=subprocess.PIPE, text=True)
if found.returncode:
    sys.exit(77 if found.returncode == 3 else 1)
sys.path.append(found.stdout.strip())

import hypothesis  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fuzz_worker import CALLS  # noqa: E402

LIMIT = 60  # seconds for one sequence; it takes milliseconds


class Worker:
    """The process that executes sequences. A new one is started when it has died."""

    def __init__(self) -> None:
        self.process: Optional[subprocess.Popen[str]] = None
        self.n_started = 0

    def start(self) -> "subprocess.Popen[str]":
        self.said = tempfile.TemporaryFile("w+")
        self.n_started += 1
        self.process = subprocess.Popen([sys.executable, "-X", "faulthandler", str(HERE / "fuzz_worker.py")], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)
        return self.process

    def run(self, calls: List[Any]) -> None:
        process = self.process or self.start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(calls) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as waits:
            waits.register(process.stdout, selectors.EVENT_READ)
            answer = process.stdout.readline().strip() if waits.select(LIMIT) else "nothing for a minute: it hangs"
        self.said.seek(0)
        errors = self.said.read()
        if answer != "ok" or errors:
            process.kill()
            code = process.wait()
            self.process = None
            raise AssertionError(f"{answer or 'the process died'} (exit status {code})\n{errors[-4000:]}\ncalls: {json.dumps(calls)}")

    def end(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            code = self.process.wait(LIMIT)
            self.said.seek(0)
            if code or self.said.read():
                raise AssertionError(f"the worker ended with status {code}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sequences", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    worker, n_calls, began = Worker(), 0, time.monotonic()
    number = st.integers(0, 999)
    delay = st.one_of(st.just(0), st.just(0), st.just(0), st.integers(1, 400))  # microseconds until the interrupt
    call = st.tuples(st.sampled_from(sorted(CALLS)), number, number, number, delay)

    @hypothesis.settings(max_examples=given.sequences, database=None, deadline=None, print_blob=False,
                         suppress_health_check=list(hypothesis.HealthCheck),
                         phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink))
    @hypothesis.seed(given.seed)
    @hypothesis.given(st.one_of(st.lists(call, min_size=1, max_size=12), st.lists(call, min_size=10, max_size=40)))
    def sequences(calls: List[Any]) -> None:
        nonlocal n_calls
        n_calls += len(calls)
        worker.run(calls)

    sequences()
    worker.end()
    print(f"fuzz_calls: {given.sequences} sequences of {n_calls} calls, seed {given.seed}: no signal, no damage, {worker.n_started} process, "
          f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

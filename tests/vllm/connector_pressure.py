# SPDX-License-Identifier: MIT
"""The connector in an engine that has too few blocks: preemption while others load, requests that are aborted while they load, a dead remote.

    tests/vllm/run.py connector_pressure.py @model
"""
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from checks import Checks
from engines import Engine, in_process, words

ok = Checks()
PAGE_BYTES = 760320  # of SmolLM2-135M as r8
PROMPTS = [words(10 + i, 330) for i in range(6)]  # five pages each, and a rest
OUTPUT = 60  # needs a seventh block on the way


def plenty(model, extra):
    with Engine(model, extra, policy="r8", length=512) as e:
        out = [e.generate([p], max_tokens=OUTPUT, logprobs=None)[0]["ids"] for p in PROMPTS]
        e.settle()
        return out


def few(model, extra):
    from vllm import SamplingParams
    with Engine(model, extra, policy="r8", length=512, memory=14 * PAGE_BYTES) as e:
        out = {}
        pool = e.scheduler.kv_cache_manager.block_pool
        preempted = []
        inner = e.scheduler._preempt_request

        def preempt(request, *arguments, **named):
            preempted.append(request.request_id)
            return inner(request, *arguments, **named)
        e.scheduler._preempt_request = preempt
        moving = e.parts[1]._moving
        load = moving._load_pages

        def slowly(*arguments):
            time.sleep(0.2)
            return load(*arguments)
        moving._load_pages = slowly
        out["ids"] = [o["ids"] for o in e.generate(PROMPTS, max_tokens=OUTPUT, logprobs=None)]
        out["preempted"], out["figures"] = len(preempted), e.figures()
        out["blocks"], out["free"] = pool.num_gpu_blocks, e.free_blocks()
        # requests that end while they load
        engine = e.llm.llm_engine
        e.llm.reset_prefix_cache()
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        waiting = 0
        for i in range(3):
            engine.add_request(f"gone {i}", {"prompt_token_ids": PROMPTS[i]}, params)
        for _ in range(400):
            engine.step()
            waiting = sum(r.status.name == "WAITING_FOR_REMOTE_KVS" for r in e.scheduler.requests.values())
            if waiting:
                break
        engine.abort_request([f"gone {i}" for i in range(3)])
        out["waiting"] = waiting
        for _ in range(4000):
            engine.step()
            if not e.scheduler.requests:
                break
            time.sleep(0.001)
        out["left"], out["free after"] = len(e.scheduler.requests), e.free_blocks()
        out["known"] = len(e.parts[0]._scheduling._known)
        moving._load_pages = load
        out["again"] = e.generate(PROMPTS[:1], max_tokens=OUTPUT, logprobs=None)[0]["ids"]
        return out


def main():
    model = sys.argv[1]
    import vllm  # noqa: F401  once, before the processes are forked
    with tempfile.TemporaryDirectory(prefix="quire-vllm-pressure-") as folder:
        key = Path(folder) / "tenant.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        with socket.socket() as s:  # a port where nobody answers
            s.bind(("127.0.0.1", 0))
            dead = s.getsockname()[1]
        extra = {"directory": str(Path(folder) / "pages"), "disk_bytes": "1G", "secret_file": str(key), "remote": f"127.0.0.1:{dead}"}
        want = in_process(plenty, model, extra)
        got = in_process(few, model, extra)
        ok(got["preempted"] > 0, f"{got['preempted']} preemptions with {got['blocks']} blocks")
        ok(got["figures"]["loaded_tokens"] >= 6 * 320, f"{got['figures']['loaded_tokens']:.0f} tokens were loaded from the directory, beside a remote that is dead",
           str(got["figures"]))
        same = sum(a == b for a, b in zip(got["ids"], want))
        ok(same == len(want), f"{same} of {len(want)} answers are those of an engine with plenty of blocks")
        ok(not got["figures"]["save_errors"] and not got["figures"]["dropped_pages"], "no save failed", str(got["figures"]))
        ok(got["free"] == got["blocks"] - 1, "all blocks are free afterwards", f"{got['free']} of {got['blocks']}")
        ok(got["waiting"] > 0, f"{got['waiting']} requests were aborted while they loaded")
        ok(got["left"] == 0 and got["free after"] == got["blocks"] - 1 and got["known"] == 0, "nothing is left of them", str(got))
        ok(got["again"] == want[0], "the engine goes on with the right tokens")
    return ok.end()


if __name__ == "__main__":
    sys.exit(main())

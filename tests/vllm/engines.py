# SPDX-License-Identifier: MIT
"""Engines of vLLM with the connector, each in a process of its own that ends with its work: vLLM is imported once, then forked."""
import multiprocessing
import os
import sys
import time
import traceback

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def in_process(work, *arguments, seconds=600):
    """What work(*arguments) returns, done in a forked process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(False)

    def run():
        try:
            theirs.send((True, work(*arguments)))
        except BaseException:
            theirs.send((False, traceback.format_exc()))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise RuntimeError(f"not done after {seconds} s")
        right, result = ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with {process.exitcode}") from None
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()
    if not right:
        raise RuntimeError(result)
    return result


class Engine:
    """with Engine(model, extra) as e: e.generate(...). extra: kv_connector_extra_config, or None for an engine without the connector."""

    def __init__(self, model, extra, dtype="float32", policy=None, block=64, memory=256 << 20, batched=512, length=2048, role="kv_both", **more):
        from vllm import LLM

        transfer = {} if extra is None else {"kv_transfer_config": {
            "kv_connector": "QuireConnector", "kv_role": role, "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}}
        if policy is not None:
            more["additional_config"] = {"quire": {"kv": policy}}
        self.llm = LLM(model=model, dtype=dtype, max_model_len=length, enforce_eager=True, kv_cache_memory_bytes=memory, block_size=block,
                       max_num_batched_tokens=batched, seed=0, disable_log_stats=False, **transfer, **more)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.core.shutdown()

    @property
    def parts(self):
        """The scheduler's and the worker's connector."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group
        return self.scheduler.connector, get_kv_transfer_group()

    def figures(self):
        total = {}
        for part in self.parts:
            for name, value in part.counted.items():
                total[name] = total.get(name, 0) + value
        return total

    def settle(self):
        """Waits until what was copied is in the store."""
        worker = self.parts[1]
        for _ in range(6000):
            if not worker._moving._queued_bytes:
                break
            time.sleep(0.01)
        worker._store.flush(30)

    def free_blocks(self):
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def generate(self, prompts, max_tokens=8, logprobs=5, salts=None, **sampling):
        """Of each prompt: tokens, log-probabilities, tokens that were not computed."""
        from vllm import SamplingParams
        inputs = [{"prompt_token_ids": list(p)} for p in prompts]
        for i, salt in zip(inputs, salts or []):
            if salt is not None:
                i["cache_salt"] = salt
        params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=logprobs, ignore_eos=True, **sampling)
        return [{"ids": list(o.outputs[0].token_ids), "cached": o.num_cached_tokens,
                 "logprobs": [sorted((k, v.logprob) for k, v in d.items()) for d in o.outputs[0].logprobs or []]}
                for o in self.llm.generate(inputs, params, use_tqdm=False)]


def words(seed, count):
    """Tokens that no other seed begins with."""
    return [(seed * 7919 + 31 * i * i + 13 * i) % 40000 + 100 for i in range(count)]

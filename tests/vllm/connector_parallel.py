# SPDX-License-Identifier: MIT
"""Tensor parallel 2 with the connector: each rank saves and loads pages of its own, and engines of another size find nothing.

    tests/vllm/run.py connector_parallel.py
"""
import os
import sys
import tempfile
from pathlib import Path

from checks import Checks
from engines import in_process
from models import make

PROMPT = [(31 * i * i + 17 * i) % 2000 + 40 for i in range(256 + 20)]


def ask(model, extra, ranks):
    from vllm import LLM, SamplingParams
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    llm = LLM(model=model, dtype="float32", max_model_len=1024, enforce_eager=True, kv_cache_memory_bytes=64 << 20, block_size=64, max_num_batched_tokens=256,
              skip_tokenizer_init=True, seed=0, additional_config={"quire": {"kv": "r8"}}, tensor_parallel_size=ranks, distributed_executor_backend="mp",
              kv_transfer_config={"kv_connector": "QuireConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                                  "kv_connector_extra_config": extra})
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3, ignore_eos=True, detokenize=False)
    got = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0]
    result = {"ids": list(got.outputs[0].token_ids), "cached": got.num_cached_tokens,
              "logprobs": [sorted((k, v.logprob) for k, v in d.items()) for d in got.outputs[0].logprobs]}
    llm.llm_engine.engine_core.shutdown()
    return result


def main():
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="quire-vllm-parallel-") as folder:
        model = in_process(make, folder, "llama")  # torch starts no threads before the processes are forked
        key = Path(folder) / "tenant.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        extra = {"directory": str(Path(folder) / "pages"), "disk_bytes": "256M", "secret_file": str(key)}
        first = in_process(ask, str(model), extra, 2)
        second = in_process(ask, str(model), extra, 2)
        check(first["cached"] == 0 and second["cached"] == 256, f"two ranks load what two ranks saved: {second['cached']} tokens")
        check(first["logprobs"] == second["logprobs"], "with the same log-probabilities, bit for bit")
        alone = in_process(ask, str(model), extra, 1)
        check(alone["cached"] == 0, "one rank finds nothing of it")
        check(alone["ids"] == first["ids"], "and computes the same tokens")
    return check.end()


if __name__ == "__main__":
    sys.exit(main())

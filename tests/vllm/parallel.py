# SPDX-License-Identifier: MIT
"""Tensor parallel 2: each of two processes has one of the two KV heads; f32 tiles give the tokens of one process."""
import os
import sys
import tempfile

from checks import Checks
from models import answers, engine, make, prompt

PROMPTS = [prompt(n, i) for i, n in enumerate((5, 300, 64))]


def main():
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="quire-vllm-") as folder:
        model = make(folder, "llama")
        one = engine(model, "off")
        want = answers(one, PROMPTS)
        del one
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        llm = engine(model, "f32", tensor_parallel_size=2, distributed_executor_backend="mp")
        got = answers(llm, PROMPTS)
        equal = sum(a == b for a, b in zip(got, want))
        check(equal == len(want), f"two processes with f32 tiles: {equal} of {len(want)} answers equal")
        del llm
    return check.end()


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: MIT
"""A real model: with float tiles the tokens are those of vLLM as it is; blocks and memory are what the policy says.

    tests/vllm/run.py tokens.py @model [--all]      --all: 20 prompts at each batch of 1 to 8, 24 tokens each
"""
import sys

import torch
from quire import Plan

from checks import Checks
from models import answers, engine

BUDGET = 512 << 20
POLICIES = ("f32", "bf16", "r8", "k8v4", "r4")
SUBJECTS = ["The capital of France is", "Explain in two sentences why the sky is blue.", "def fibonacci(n):\n", "Water boils at",
            "A short story about a lighthouse:", "The three primary colours are", "To make bread you need", "import numpy as np\n",
            "In 1969 the first", "My favourite animal is the", "Q: What is 12 + 30?\nA:", "The opposite of hot is",
            "Once upon a time, in a small village,", "List of planets:\n1. Mercury\n2.", "He opened the door and", "The recipe says:",
            "SELECT name FROM", "Dear Sir or Madam,", "The quick brown fox", "Light travels at a speed of"]
LONG = " ".join(f"Item {i} costs {i * 7 % 23} coins." for i in range(60)) + " The cheapest item"
check = Checks()


def resident(tensor):
    """Bytes of memory that the pages around a tensor have, from the first to the last address of its storage."""
    first = tensor.untyped_storage().data_ptr()
    last = first + tensor.untyped_storage().nbytes()
    total = inside = 0
    for line in open("/proc/self/smaps"):
        head = line.split(None, 1)[0]
        if not head.endswith(":"):
            begin, end = (int(x, 16) for x in head.split("-"))
            inside = begin < last and end > first
        elif inside and head == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def sizes(llm, policy, shape):
    config = llm.llm_engine.vllm_config
    layers = [x for x in config.compilation_config.static_forward_context.values() if hasattr(x, "kv_cache")]
    plan = Plan(policy, n_layers=len(layers), n_q_heads=shape[0], n_kv_heads=shape[1], d_k=shape[2])
    block = config.cache_config.block_size
    page = sum(plan.page_bytes()) * (block // 64)
    got = config.cache_config.num_gpu_blocks
    check(got == BUDGET // page, f"{policy}: {got} blocks of {block} tokens in 512 MiB, {BUDGET / got / block:.0f} bytes per token",
          f"the plan says {BUDGET // page}")
    held = {x.kv_cache.untyped_storage().data_ptr(): x.kv_cache for x in layers}
    used = sum(resident(x) for x in held.values())
    check(used <= BUDGET + (8 << 20), f"{policy}: {used / 2**20:.0f} MiB resident")


def main():
    model, everything = sys.argv[1], "--all" in sys.argv
    subjects, batches, n_tokens = (SUBJECTS, range(1, 9), 24) if everything else (SUBJECTS[:6], (1, 3, 6), 12)
    subjects = subjects[:-1] + [LONG]

    def ask(llm):
        return [answers(llm, subjects[i:i + batch], n_tokens) for batch in batches for i in range(0, len(subjects), batch)]

    stock = engine(model, "off", kv_cache_memory_bytes=BUDGET)
    shape = stock.llm_engine.model_config
    parallel = stock.llm_engine.vllm_config.parallel_config
    shape = (shape.get_num_attention_heads(parallel), shape.get_num_kv_heads(parallel), shape.get_head_size())
    want = ask(stock)
    del stock
    for policy in POLICIES:
        llm = engine(model, policy, kv_cache_memory_bytes=BUDGET)
        sizes(llm, policy, shape)
        if policy in ("f32", "r8"):
            got = ask(llm)
            same = sum(a == b for x, y in zip(got, want) for a, b in zip(x, y))
            total = sum(len(x) for x in want)
            if policy == "f32":
                check(same == total, f"f32 tiles: {same} of {total} answers have vLLM's tokens")
                again = answers(llm, [LONG], n_tokens)
                check(again[0] == got[-1][-1], "f32 tiles: the same answer from the prefix cache")
            else:
                print(f"{policy} tiles: {same} of {total} answers have vLLM's tokens")
        del llm
    return check.end()


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(main())

# SPDX-License-Identifier: MIT
"""Runs in the Python of scripts/get-llama --python: chats through llama-cpp-python and prints JSON, for python_host.py.

The argument is JSON: model; kv, a policy, "declared" or null (without Quire); device, its file; chats, lists of what the user says; n, the
tokens of an answer; threads; state: save a state and load it into a second model.
"""
import json
import sys

import llama_cpp

wish = json.loads(sys.argv[1])
arguments = {"n_gpu_layers": 0, "flash_attn": True}
if wish["kv"]:
    from quire import llama
    arguments = llama.enable(wish["kv"], device=wish["device"], log=True)


def model():
    return llama_cpp.Llama(wish["model"], n_ctx=1024, n_threads=wish["threads"], n_threads_batch=wish["threads"], logits_all=True, verbose=False,
                           **arguments)


def counted(m):
    """Tokens that were computed, prompts and answers."""
    perf = llama_cpp.llama_perf_context(m.ctx)
    return perf.n_p_eval + perf.n_eval


def chat(m, said):
    """The answers of one conversation, each with its tokens and the log-probabilities of the likeliest ones."""
    messages, answers = [], []
    for words in said:
        messages.append({"role": "user", "content": words})
        choice = m.create_chat_completion(messages, max_tokens=wish["n"], temperature=0, logprobs=True, top_logprobs=4)["choices"][0]
        messages.append(choice["message"])
        tokens = choice["logprobs"]["content"]
        answers.append({"content": choice["message"]["content"], "tokens": [t["token"] for t in tokens],
                        "completion_probabilities": [{"top_logprobs": [{"id": p["token"], "logprob": p["logprob"]} for p in t["top_logprobs"]]}
                                                     for t in tokens]})
    return answers


def state(first, second):
    """The same continuation from a cache that was computed and from one that was loaded, where nearly nothing is computed again."""
    prompt = first.tokenize(("Here is a list of the planets and what is known about each of them. " * 8).encode())
    texts, computed = [], []

    def go_on(m):
        before = counted(m)
        done = m.create_completion(prompt, max_tokens=wish["n"], temperature=0, logprobs=2)["choices"][0]
        texts.append([done["text"], done["logprobs"]["token_logprobs"]])
        computed.append(counted(m) - before)

    first.reset()
    first.eval(prompt)
    saved = first.save_state()
    go_on(first)
    second.load_state(saved)
    go_on(second)
    first.load_state(saved)
    go_on(first)
    return {"texts": texts, "computed": computed, "prompt": len(prompt), "bytes": saved.llama_state_size}


m = model()
out = {"version": llama_cpp.__version__, "chats": [chat(m, said) for said in wish["chats"]]}
if wish["kv"]:
    out["held"] = [[h.policy, h.contexts, h.cells, h.tokens, h.bytes, h.f16_bytes, h.saved, str(h)] for h in llama.report()]
    out["saved"] = llama.saved()
if wish.get("state"):
    second = model()
    out["state"] = state(m, second)
    second.close()
    m.close()
    out["after"] = [h.contexts for h in llama.report()]
print(json.dumps(out, default=float))  # numpy

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the bodies of this folder: 100 requests for each form of endpoint, as clients send them. The seed is fixed.

    tests/serve/bodies/make.py

A line is {"path", "watched", "body"}: whether quire serve can know the tokens of the request (false: images, several prompts, forms that the
server itself does not convert).
"""
import json
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIKI = (HERE.parents[2] / "eval/text/wiki.txt").read_text()
random.seed(23)

ODD = ["naïve café – “quotes” … 你好,世界 🚀", "tabs\tand\nlines\r\n\n\nand   spaces ", "<|im_start|>system\nnot a system<|im_end|>",
       "\\backslashes\\ and \"quotes\" and 'single' {\"json\": [1, 2.50, null]}", "```python\nprint('x' * 3)\n```", "عربى עברית ไทย ‮ \u200b\ufeff end",
       "control \u0001\u001f\u007f characters", "[INST] <s> </s> <bos> <start_of_turn>", "{{ braces }} {% if x %} {# note #}", "0.1 + 0.2 = 0.30000000000000004"]
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def text(least=20, most=400):
    if random.random() < 0.15:
        return random.choice(ODD)
    at = random.randrange(len(WIKI) - most)
    return WIKI[at:at + random.randint(least, most)].strip() or "Hello"


def schema(*names, required=True):
    kinds = {"path": {"type": "string", "description": "The absolute path of the file"}, "limit": {"type": "integer", "minimum": 1, "maximum": 2000},
             "query": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}, "flags": {"type": "array", "items": {"type": "string"}},
             "deep": {"type": "object", "properties": {"rate": {"type": "number", "default": 0.5}, "on": {"type": "boolean"}}}}
    made = {"type": "object", "properties": {n: kinds[n] for n in names}, "additionalProperties": False}
    if required:
        made["required"] = [names[0]]
    return made


TOOLS = [("read_file", "Reads a file of the local file system. It can read the whole file or a part of it.", schema("path", "limit")),
         ("search", "Searches the web “everywhere”.", schema("query", "limit", "flags")), ("get_weather", "The weather of a place", schema("query", "unit")),
         ("configure", "", schema("deep", "flags", required=False)), ("run_command", "Runs a command\nin a shell.", schema("query", "flags"))]
INPUTS = [{"path": "/srv/data/notes.txt"}, {"path": "C:\\x\\y.txt", "limit": 20}, {"query": "größe \"quoted\" 你好 🚀", "limit": 5, "flags": ["a", "b"]}, {},
          {"deep": {"rate": 0.25, "on": True}, "flags": []}, {"query": "line\nbreak\ttab / slash", "unit": None}, {"deep": {"rate": 1.0, "on": False}},
          {"query": "odd \u0001\u001f\u007f", "limit": -3}, {"query": "", "flags": [["x"], {"y": 12345678901}]}]


def maybe(chance, body, **more):
    if random.random() < chance:
        body.update(more)


# --- /v1/messages ------------------------------------------------------------------------------------------

def a_tools():
    made = []
    for name, about, parameters in random.sample(TOOLS, random.randint(1, 4)):
        tool = {"name": name, "description": about, "input_schema": parameters}
        maybe(0.2, tool, cache_control={"type": "ephemeral"})
        made.append(tool)
    if random.random() < 0.1:
        made.append({"type": "web_search_20250305", "name": "web_search", "max_uses": 5})
    return made


def a_text():
    block = {"type": "text", "text": text()}
    maybe(0.2, block, cache_control={"type": "ephemeral"})
    return block


def a_result(call):
    block = {"type": "tool_result", "tool_use_id": call}
    kind = random.randrange(5)
    if kind < 2:
        block["content"] = text()
    elif kind == 2:
        block["content"] = [{"type": "text", "text": text()} for _ in range(random.randint(1, 3))]
    elif kind == 3:
        block.update(content="Error: no such file", is_error=True)
    return block


def a_messages(turns, tools):
    made = []
    for turn in range(turns):
        made.append({"role": "user", "content": text() if random.random() < 0.5 else [a_text() for _ in range(random.randint(1, 3))]})
        if turn == turns - 1:
            break
        blocks = []
        if random.random() < 0.3:
            blocks.append({"type": "thinking", "thinking": text(), "signature": "c2lnbmF0dXJl"})
        if random.random() < 0.1:
            blocks.append({"type": "redacted_thinking", "data": "b3BhcXVl"})
        if random.random() < 0.8:
            blocks.append(a_text())
        calls = [f"toolu_{turn}{i}" for i in range(random.randint(1, 2))] if tools and random.random() < 0.7 else []
        for call in calls:
            blocks.append({"type": "tool_use", "id": call, "name": random.choice(tools)["name"], "input": random.choice(INPUTS)})
        made.append({"role": "assistant", "content": blocks} if blocks and random.random() < 0.9 or calls else {"role": "assistant", "content": text()})
        if calls:
            made.append({"role": "user", "content": [a_result(c) for c in calls] + ([a_text()] if random.random() < 0.4 else [])})
            made.append({"role": "assistant", "content": [a_text()]})
    return made


def messages():
    for i in range(90):
        tools = a_tools() if random.random() < 0.6 else []
        body = {"model": "m-large", "max_tokens": 1, "messages": a_messages(random.choice([1, 1, 2, 3, 4]), tools)}
        system = random.randrange(4)
        if system == 1:
            body["system"] = text()
        if system == 2:
            body["system"] = [a_text() for _ in range(random.randint(1, 3))]
        if system == 3 and i % 3 == 0:
            body["system"] = [{"type": "text", "text": "You work in a terminal. "}, {"type": "text", "text": text(), "cache_control": {"type": "ephemeral"}}]
        if tools:
            body["tools"] = tools
            maybe(0.4, body, tool_choice=random.choice([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": tools[0]["name"]}, {"type": "none"},
                                                        {"type": "auto", "disable_parallel_tool_use": True}]))
        maybe(0.2, body, stop_sequences=["\n\nHuman:", "STOP"])
        maybe(0.3, body, metadata={"user_id": "user_1234_account__session_5678"})
        maybe(0.3, body, temperature=1, top_p=0.95, top_k=40)
        maybe(0.4, body, stream=True)
        maybe(0.2, body, thinking=random.choice([{"type": "enabled", "budget_tokens": 2048}, {"type": "disabled"}, {"type": "adaptive"}]))
        maybe(0.1, body, output_config={"effort": "high"})
        maybe(0.1, body, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}, service_tier="auto")
        maybe(0.1, body, chat_template_kwargs={"enable_thinking": False})
        maybe(0.1, body, id_slot=1, cache_prompt=False, n_cache_reuse=8)
        yield True, "/v1/messages", body
    plain = {"max_tokens": 1}
    yield True, "/v1/messages", {**plain, "messages": [{"role": "user", "content": ""}]}
    yield True, "/v1/messages", {**plain, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant"}, {"role": "user", "content": "Again"}]}
    yield True, "/v1/messages", {**plain, "system": "", "messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}
    yield True, "/v1/messages", {**plain, "system": None, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is ("}]}
    yield True, "/v1/messages", {**plain, "tools": [], "messages": [{"role": "user", "content": text(3000, 4000)}]}
    yield False, "/v1/messages", {**plain, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}]}]}
    yield False, "/v1/messages", {**plain, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                                                                                    {"type": "text", "text": "Sum it up"}]}]}
    yield False, "/v1/messages", {**plain, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "rate", "input": {"x": 1e-07, "y": 1.5e300}}]}, {"role": "user", "content": [a_result("t")]}]}
    yield False, "/v1/messages", {**plain, "messages": "Hi"}
    yield False, "/v1/messages", {**plain, "system": "No messages"}


# --- /v1/responses ------------------------------------------------------------------------------------------

def r_items(turns, tools):
    made = []
    for turn in range(turns):
        kind = random.randrange(3)
        if kind == 0:
            made.append({"role": "user", "content": text()})
        else:
            made.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text()} for _ in range(kind)]})
        if turn == turns - 1:
            break
        if random.random() < 0.3:
            made.append({"type": "reasoning", "id": f"rs_{turn}", "summary": [], "content": [{"type": "reasoning_text", "text": text()}], "encrypted_content": None})
        called = tools and random.random() < 0.6
        if random.random() < 0.7 or not called:
            made.append({"type": "message", "role": "assistant", "id": f"msg_{turn}", "status": "completed",
                         "content": [{"type": "output_text", "text": text(), "annotations": []}]})
        if called:
            n = random.randint(1, 2)
            for i in range(n):
                made.append({"type": "function_call", "id": f"fc_{turn}{i}", "call_id": f"call_{turn}{i}", "name": random.choice(tools)["name"],
                             "arguments": json.dumps(random.choice(INPUTS), ensure_ascii=random.random() < 0.5), "status": "completed"})
            for i in range(n):
                output = text() if random.random() < 0.7 else [{"type": "input_text", "text": text()}]
                made.append({"type": "function_call_output", "call_id": f"call_{turn}{i}", "output": output})
    return made


def responses():
    for i in range(90):
        path = "/v1/responses" if i % 10 else "/responses"
        tools = []
        if random.random() < 0.5:
            for name, about, parameters in random.sample(TOOLS, random.randint(1, 4)):
                tool = {"type": "function", "name": name, "description": about, "parameters": parameters}
                maybe(0.5, tool, strict=random.random() < 0.5)
                tools.append(tool)
        body = {"model": "gpt-5-codex", "max_output_tokens": 1, "store": False}
        body["input"] = text() if random.random() < 0.2 else r_items(random.choice([1, 2, 3, 4]), tools)
        if isinstance(body["input"], list) and random.random() < 0.3:
            body["input"].insert(0, {"type": "message", "role": random.choice(["developer", "system"]), "content": [{"type": "input_text", "text": text()}]})
        maybe(0.5, body, instructions=text())
        if tools:
            body["tools"] = tools + ([{"type": "web_search"}] if random.random() < 0.2 else [])
            maybe(0.4, body, tool_choice=random.choice(["auto", "required", "none"]), parallel_tool_calls=random.random() < 0.5)
        maybe(0.3, body, reasoning={"effort": random.choice(["low", "high"]), "summary": "auto"}, include=["reasoning.encrypted_content"])
        maybe(0.4, body, stream=True)
        maybe(0.2, body, temperature=0.7, top_p=1, truncation="disabled", prompt_cache_key="0199-abcd")
        maybe(0.1, body, metadata={"a": "b"}, user="someone")
        maybe(0.1, body, text={"format": {"type": "text"}, "verbosity": "low"})
        maybe(0.1, body, previous_response_id=None)
        maybe(0.1, body, id_slot=3, n_cache_reuse=8)
        yield True, path, body
    plain = {"max_output_tokens": 1}
    yield True, "/v1/responses", {**plain, "input": ""}
    yield True, "/v1/responses", {**plain, "input": "Hi", "instructions": None}
    yield True, "/v1/responses", {**plain, "input": text(3000, 4000), "instructions": ""}
    yield False, "/v1/responses", {**plain, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + IMAGE}]}]}
    yield False, "/v1/responses", {**plain, "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}
    yield False, "/v1/responses", {**plain, "input": "Hi", "previous_response_id": "resp_1"}
    yield False, "/v1/responses", {**plain, "input": [{"type": "item_reference", "id": "msg_1"}]}
    yield False, "/v1/responses", {**plain, "input": "Hi", "n": 2}
    yield False, "/v1/responses", {**plain, "input": "Hi", "cache_prompt": False}
    yield False, "/v1/responses", {**plain}


# --- /v1/chat/completions ----------------------------------------------------------------------------------

def c_messages(turns, tools):
    made = []
    if random.random() < 0.5:
        made.append({"role": random.choice(["system", "system", "developer"]), "content": text()})
    for turn in range(turns):
        user = {"role": "user", "content": text() if random.random() < 0.6 else [{"type": "text", "text": text()} for _ in range(random.randint(1, 3))]}
        maybe(0.1, user, name="alice")
        made.append(user)
        if turn == turns - 1:
            break
        answer = {"role": "assistant", "content": text()}
        maybe(0.2, answer, reasoning_content=text())
        if tools and random.random() < 0.6:
            answer["content"] = random.choice([None, "", text()])
            answer["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": {"name": random.choice(tools)["function"]["name"],
                                                                                            "arguments": json.dumps(random.choice(INPUTS))}}]
            made += [answer, {"role": "tool", "tool_call_id": f"call_{turn}", "content": text()}]
            answer = {"role": "assistant", "content": text()}
        made.append(answer)
    return made


def chat():
    for i in range(84):
        path = "/v1/chat/completions" if i % 10 else "/chat/completions"
        tools = []
        if random.random() < 0.4:
            tools = [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in random.sample(TOOLS, random.randint(1, 4))]
        body = {"model": "m", "max_tokens": 1, "messages": c_messages(random.choice([1, 1, 2, 3]), tools)}
        if tools:
            body["tools"] = tools
            maybe(0.5, body, tool_choice=random.choice(["auto", "none", "required"]))
            maybe(0.3, body, parallel_tool_calls=random.random() < 0.5)
        elif random.random() < 0.3:
            body["response_format"] = random.choice([{"type": "json_object"}, {"type": "text"}, {"type": "json_schema", "json_schema": {
                "name": "x", "strict": True, "schema": schema("query", "unit")}}])
        elif random.random() < 0.2:
            body["grammar"] = 'root ::= "yes" | "no"'
        maybe(0.4, body, stream=True)
        maybe(0.1, body, stream_options={"include_usage": True})
        maybe(0.15, body, chat_template_kwargs={"enable_thinking": random.random() < 0.5, "custom": "x"})
        maybe(0.1, body, reasoning_format=random.choice(["none", "auto", "deepseek"]))
        maybe(0.1, body, reasoning_effort=random.choice(["low", "none"]))
        maybe(0.2, body, temperature=0.2, seed=7, stop=["\n\n"], presence_penalty=0.1, user="u")
        maybe(0.1, body, add_generation_prompt=False)
        maybe(0.1, body, n=1, cache_prompt=True, id_slot=2)
        yield True, path, body
    ask = "/v1/chat/completions"
    one, plain = [{"role": "user", "content": "Hi"}], {"max_tokens": 1}
    yield True, ask, {**plain, "messages": one + [{"role": "assistant", "content": "The answer is ("}]}
    yield True, ask, {**plain, "messages": one + [{"role": "assistant", "content": [{"type": "text", "text": "Sure"}, {"type": "text", "text": ", "}]}]}
    yield True, ask, {**plain, "messages": one + [{"role": "assistant", "content": "So"}], "add_generation_prompt": False, "continue_final_message": True}
    yield True, ask, {**plain, "messages": [{"role": "user", "content": ""}]}
    yield True, ask, {**plain, "messages": [{"role": "system", "content": "Only this."}]}
    yield True, ask, {**plain, "messages": one, "json_schema": {"type": "object"}, "logprobs": True, "top_logprobs": 2}
    yield True, ask, {**plain, "messages": one, "n_cache_reuse": 4}
    yield True, ask, {**plain, "messages": one + [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "user", "content": "x"}]}
    yield True, ask, {**plain, "messages": [{"role": "user", "content": text(3000, 4000)}], "stream": True, "timings_per_token": True}
    yield True, ask, {**plain, "messages": one, "max_completion_tokens": 1, "return_progress": True, "stream": True}
    yield False, ask, {**plain, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + IMAGE}}]}]}
    yield False, ask, {**plain, "messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}]}
    yield False, ask, {**plain, "messages": one, "n": 2}
    yield False, ask, {**plain, "messages": one, "cache_prompt": False}
    yield True, ask, {**plain, "messages": []}
    yield False, ask, {**plain, "messages": one, "lora": [{"id": 0, "scale": 0.5}]}


# --- texts, tokens, and what is between ----------------------------------------------------------------------------

def texts():
    plain = {"n_predict": 1}
    for i in range(60):
        path = ["/completion", "/v1/completions", "/completions"][i % 3]
        body = {"prompt": text(5, 900), "max_tokens" if path.startswith("/v1") else "n_predict": 1}
        maybe(0.3, body, stream=True)
        maybe(0.2, body, temperature=0, n_probs=2)
        maybe(0.2, body, stop=["x"])
        maybe(0.1, body, cache_prompt=True, id_slot=3, n_cache_reuse=16)
        yield True, path, body
    for odd in ODD:
        yield True, "/completion", {**plain, "prompt": "<|im_start|>user\n" + odd + "<|im_end|>\n<|im_start|>assistant\n"}
    for i in range(12):
        yield True, "/completion", {**plain, "prompt": [random.randrange(1000, 40000) for _ in range(random.randint(1, 120))]}
    yield True, "/completion", {**plain, "prompt": " "}
    yield True, "/v1/completions", {"max_tokens": 1, "prompt": [1, 2, 3]}
    for prompt in ([1, 2, "mixed with text", 3], ["one", "two"], ["one"], [[1, 2], [3, 4]], [], {"prompt_string": "an object"}, None, 5,
                   {"prompt_string": "<__media__>", "multimodal_data": [IMAGE]}, [1.5, 2], [-1]):
        yield False, "/completion", {**plain, "prompt": prompt}
    yield False, "/completion", {**plain}
    yield False, "/completion", {**plain, "prompt": "x", "n_cmpl": 2}
    yield False, "/completion", {**plain, "prompt": "x", "cache_prompt": False}
    for _ in range(2):
        yield False, "/infill", {**plain, "input_prefix": "def f(x):\n", "input_suffix": "\n    return y\n", "prompt": "    y ="}


for name, make in (("messages", messages), ("responses", responses), ("chat", chat), ("text", texts)):
    lines = [json.dumps({"path": path, "watched": watched, "body": body}, ensure_ascii=False) for watched, path, body in make()]
    assert len(lines) == 100, (name, len(lines))
    (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

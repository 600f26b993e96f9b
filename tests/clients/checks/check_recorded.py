"""Requests of programs that are no packages, after their sources: llama.vim, llama.vscode,
Open WebUI, Cline, Continue, aider and Claude Code. What each reads of the answer must be there.
"""

import json
import os
import urllib.request

BASE = os.environ["SERVER_URL"]
SAMPLERS = ["top_k", "top_p", "infill"]
TIMINGS = [
    f"timings/{part}_{what}"
    for part in ("prompt", "predicted")
    for what in ("n", "ms", "per_token_ms", "per_second")
]


def ask(path, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    request = urllib.request.Request(BASE + path, data, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


def events(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


# llama.vim: what it sends in the background, then at the cursor
extra = [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}]
warm_up = {
    "input_prefix": "", "input_suffix": "", "input_extra": extra, "prompt": "", "n_predict": 0,
    "temperature": 0.0, "stream": False, "samplers": [], "cache_prompt": True,
    "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""],
}  # fmt: skip
assert json.loads(ask("/infill", warm_up)) == {}
at_cursor = {
    "input_prefix": "def f():\n", "input_suffix": "\n\n", "input_extra": extra,
    "prompt": "    ret", "n_predict": 16, "n_indent": 4, "top_k": 40, "top_p": 0.99,
    "stream": False, "samplers": SAMPLERS, "cache_prompt": True, "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1500,
    "response_fields": ["content", *TIMINGS, "truncated", "tokens_cached"],
}  # fmt: skip
answer = json.loads(ask("/infill", at_cursor))
assert set(answer) == {"content", "truncated", "tokens_cached", *TIMINGS}, answer

# llama.vscode: at the cursor, an edit, the agent
in_vscode = {
    "input_prefix": "def f():\n", "input_suffix": "\n", "input_extra": extra, "prompt": "    ret",
    "n_predict": 16, "top_k": 40, "top_p": 0.99, "stream": False, "samplers": SAMPLERS,
    "cache_prompt": True, "n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 2500,
}  # fmt: skip
answer = json.loads(ask("/infill", in_vscode))
assert {"content", "tokens_cached", "truncated", "timings", "generation_settings"} <= set(answer)
edit = {
    "messages": [
        {"role": "system", "content": "You are an expert coder."},
        {"role": "user", "content": "Rename f to g: def f(): pass"},
    ],
    "stream": False, "cache_prompt": True, "samplers": "edkypmxt", "temperature": 0.8,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    "typical_p": 1, "xtc_probability": 0, "xtc_threshold": 0.1, "repeat_last_n": 64,
    "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0,
    "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "max_tokens": 16,
    "timings_per_token": False,
}  # fmt: skip
assert json.loads(ask("/v1/chat/completions", edit))["choices"][0]["message"]["content"]
schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
function = {"name": "read_file", "description": "Read.", "parameters": schema, "strict": True}
agent = {
    "messages": edit["messages"], "stream": False, "temperature": 0.8, "top_p": 0.95,
    "tools": [{"type": "function", "function": function}], "tool_choice": "auto", "max_tokens": 32,
}  # fmt: skip
assert "message" in json.loads(ask("/v1/chat/completions", agent))["choices"][0]

# Open WebUI, as an OpenAI connection: the list, then a streamed chat
models = json.loads(ask("/v1/models", Authorization="Bearer "))
assert models["data"][0]["id"] == "demo"
chat = {
    "stream": True, "model": "demo", "messages": [{"role": "user", "content": "Say hello."}],
    "stream_options": {"include_usage": True}, "max_tokens": 12,
}  # fmt: skip
text = ask("/v1/chat/completions", chat, Authorization="Bearer ")
assert text.rstrip().endswith("data: [DONE]")
*parts, usage = events(text)
assert any(part["choices"] and part["choices"][0]["delta"].get("content") for part in parts)
assert usage["usage"]["completion_tokens"] > 0

# Cline, as "OpenAI Compatible": text in parts, tools and their results, the tokens at the end
call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
cline = {
    "model": "any", "temperature": 0, "max_tokens": 24, "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "You are Cline."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<task>Say hello.</task>"},
                {"type": "text", "text": "<environment_details>None.</environment_details>"},
            ],
        },
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "hello"},
    ],
    "tools": [{"type": "function", "function": function | {"strict": False}}],
}  # fmt: skip
*parts, last = events(ask("/v1/chat/completions", cline, Authorization="Bearer none"))
assert any(part["choices"][0]["delta"].get("content") for part in parts)
assert last["usage"]["prompt_tokens"] > 10
assert last["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0

# Continue: a chat with tools, and what it completes at the cursor
del function["strict"]
body = {
    "messages": [
        {"role": "system", "content": "You are in chat mode."},
        {"role": "user", "content": "Say hello."},
    ],
    "model": "any", "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": function}],
}  # fmt: skip
parts = events(ask("/v1/chat/completions", body, Authorization="Bearer none"))
assert any(part["choices"] and part["choices"][0]["delta"].get("content") for part in parts)
body = {
    "prompt": "<|fim_prefix|>def add(a, b):\n    <|fim_suffix|>\n<|fim_middle|>", "model": "any",
    "max_tokens": 12, "temperature": 0.01, "stream": True,
    "stop": ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "\n\n"],
}  # fmt: skip
parts = events(ask("/v1/completions", body, Authorization="Bearer none"))
assert any(part["choices"][0]["text"] for part in parts)

# aider, through LiteLLM: examples as a conversation, then the task; a commit message
talk = [
    {"role": "system", "content": "Act as an expert software developer."},
    {"role": "user", "content": "I switched to a new code base."},
    {"role": "assistant", "content": "Ok."},
    {"role": "user", "content": "Say hello."},
]
aider = {"model": "any", "messages": talk, "temperature": 0, "max_tokens": 12}
parts = events(ask("/v1/chat/completions", aider | {"stream": True}, Authorization="Bearer none"))
assert any(part["choices"][0]["delta"].get("content") for part in parts)
assert parts[-1]["choices"][0]["finish_reason"] in ("stop", "length")
aider = aider | {"messages": [talk[0], talk[-1]], "stream": False}
answer = json.loads(ask("/v1/chat/completions", aider, Authorization="Bearer none"))
assert answer["choices"][0]["message"]["content"]

# Claude Code: counts, then streams with tools and a system prompt in blocks
tool = {"name": "Bash", "description": "Run a command.", "input_schema": schema}
code = {
    "model": "claude-sonnet-4-5", "max_tokens": 24, "stream": True, "temperature": 1,
    "system": [
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>None.</system-reminder>"},
                {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ],
    "tools": [tool], "metadata": {"user_id": "user_1_account__session_2"},
}  # fmt: skip
said = {
    "anthropic_version": "2023-06-01", "x_api_key": "-", "x_app": "cli",
    "anthropic_beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
}  # fmt: skip
count = {name: code[name] for name in ("model", "system", "messages", "tools")}
assert json.loads(ask("/v1/messages/count_tokens?beta=true", count, **said))["input_tokens"] > 10
kinds = [event["type"] for event in events(ask("/v1/messages?beta=true", code, **said))]
assert kinds[0] == "message_start"
assert kinds[-1] == "message_stop"
assert "content_block_delta" in kinds
used = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"path": "a"}}
result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "b", "is_error": False}
code["messages"] += [
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, used]},
    {"role": "user", "content": [result]},
]
assert events(ask("/v1/messages?beta=true", code, **said))[-1]["type"] == "message_stop"
print("ok")

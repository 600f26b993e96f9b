"""The chat templates that --chat-template knows by name, as at llama-server.

A name stands for the plain format of a model family: no tools, no reasoning.

Source of the formats: llama.cpp's src/llama-chat.cpp, which names the models' own descriptions.
"""

from __future__ import annotations

import json
import re


def _turns(*turns: str, start: str = "", prompt: str = "", trims: str = "") -> str:
    """Jinja text of a format that renders each message on its own.

    Args:
        turns: "role: text" with {role} and {content} in the text; the role * stands for all others.
        start: text before all messages.
        prompt: the generation prompt.
        trims: roles whose content loses white space around it.
    """
    branches = []
    for turn in sorted(turns, key=lambda turn: turn[0] == "*"):
        role, text = turn.split(": ", 1)
        content = "message.content | trim" if role in trims.split() else "message.content"
        values = {"{role}": "message.role", "{content}": content}
        parts = [part for part in re.split(r"(\{role\}|\{content\})", text) if part]
        written = " ~ ".join(
            f"({values[part]})" if part in values else _quoted(part) for part in parts
        )
        condition = "true" if role == "*" else f"message.role == {_quoted(role)}"
        branches.append(f"if {condition} %}}{{{{ {written} }}}}")
    shown = "{% el".join(branches)
    return (
        f"{{{{ {_quoted(start)} }}}}"
        f"{{% for message in messages %}}{{% {shown}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {_quoted(prompt)} }}}}{{% endif %}}"
    )


def _quoted(text: str) -> str:
    return json.dumps(text)


def _mistral(before: str, inside: str, *, trims: bool) -> str:
    """Mistral's formats, in which a system message stands inside the first user turn."""
    answer = "message.content | trim" if trims else "message.content"
    return (
        "{% set ns = namespace(is_open=false) %}{% for message in messages %}"
        "{% if not ns.is_open %}{{ '"
        + before
        + "[INST]"
        + inside
        + "' }}{% set ns.is_open = true %}"
        "{% endif %}"
        "{% if message.role == 'system' %}{{ message.content ~ '\\n\\n' }}"
        "{% elif message.role == 'user' %}{{ message.content ~ '" + before + "[/INST]' }}"
        "{% else %}{{ '" + inside + "' ~ (" + answer + ") ~ '</s>' }}{% set ns.is_open = false %}"
        "{% endif %}{% endfor %}"
    )


def _llama2(system: tuple[str, str], *, bos: str = "", trims: bool = False) -> str:
    content = "message.content | trim" if trims else "message.content"
    before, after = map(_quoted, system)
    return (
        "{{ '[INST] ' }}{% set ns = namespace(is_open=true) %}{% for message in messages %}"
        f"{{% set content = {content} %}}"
        "{% if not ns.is_open %}{{ '" + bos + "[INST] ' }}{% set ns.is_open = true %}{% endif %}"
        "{% if message.role == 'system' %}{{ " + f"{before} ~ content ~ {after}" + " }}"
        "{% elif message.role == 'user' %}{{ content ~ ' [/INST]' }}"
        "{% else %}{{ content ~ '</s>' }}{% set ns.is_open = false %}{% endif %}{% endfor %}"
    )


_SYS = ("<<SYS>>\n", "\n<</SYS>>\n\n")
_SYSTEM_FIRST = (
    "{% set ns = namespace(system='') %}{% for message in messages %}"
    "{% if message.role == 'system' %}"
)
_GEMMA = (
    _SYSTEM_FIRST + "{% set ns.system = ns.system ~ (message.content | trim) %}{% else %}"
    "{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' ~ role ~ '\\n' }}"
    "{% if ns.system and role != 'model' %}{{ ns.system ~ '\\n\\n' }}{% set ns.system = '' %}"
    "{% endif %}"
    "{{ (message.content | trim) ~ '<end_of_turn>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_ORION = (
    _SYSTEM_FIRST + "{% set ns.system = ns.system ~ message.content %}"
    "{% elif message.role == 'user' %}{{ 'Human: ' }}"
    "{% if ns.system %}{{ ns.system ~ '\\n\\n' }}{% set ns.system = '' %}{% endif %}"
    "{{ message.content ~ '\\n\\nAssistant: </s>' }}"
    "{% else %}{{ message.content ~ '</s>' }}{% endif %}{% endfor %}"
)
_IS_FIRST_SYSTEM = "{% if messages and messages[0].role == 'system' %}"
_GIGACHAT = _turns(
    "system: {content}<|message_sep|>",
    "user: user<|role_sep|>{content}<|message_sep|>"
    "available functions<|role_sep|>[]<|message_sep|>",
    "assistant: assistant<|role_sep|>{content}<|message_sep|>",
    start="<s>",
    prompt="assistant<|role_sep|>",
)
_BAILING = ("user: <role>HUMAN</role>{content}", "system: <role>SYSTEM</role>{content}")
_BAILING_ANSWER = "assistant: <role>ASSISTANT</role>{content}"
_GRANITE = _turns(
    "*: <|start_of_role|>{role}<|end_of_role|>{content}<|end_of_text|>\n",
    prompt="<|start_of_role|>assistant<|end_of_role|>",
)
_EXAONE = _turns(
    "user: [|user|]{content}\n",
    "*: [|{role}|]{content}[|endofturn|]\n",
    prompt="[|assistant|]",
    trims="user *",
)
_USER = "\u041f\u043e\u043b\u044c\u0437\u043e\u0432\u0430\u0442\u0435\u043b\u044c"
_ASSISTANT = "\u0410\u0441\u0441\u0438\u0441\u0442\u0435\u043d\u0442"
_HOLDER_2 = "<\uff5chy_place\u2581holder\u2581no\u25812\uff5c>"
_HOLDER_3 = "<\uff5chy_place\u2581holder\u2581no\u25813\uff5c>"
_ALL = "system user assistant *"

BUILT_IN_TEMPLATES: dict[str, str] = {
    "chatml": _turns(
        "*: <|im_start|>{role}\n{content}<|im_end|>\n", prompt="<|im_start|>assistant\n"
    ),
    "llama2": _llama2(("", "\n")),
    "llama2-sys": _llama2(_SYS),
    "llama2-sys-bos": _llama2(_SYS, bos="<s>"),
    "llama2-sys-strip": _llama2(_SYS, trims=True),
    "mistral-v1": _mistral(" ", " ", trims=False),
    "mistral-v3": _mistral("", " ", trims=True),
    "mistral-v3-tekken": _mistral("", "", trims=False),
    "mistral-v7": _turns(
        "system: [SYSTEM_PROMPT] {content}[/SYSTEM_PROMPT]",
        "user: [INST] {content}[/INST]",
        "*:  {content}</s>",
    ),
    "mistral-v7-tekken": _turns(
        "system: [SYSTEM_PROMPT]{content}[/SYSTEM_PROMPT]",
        "user: [INST]{content}[/INST]",
        "*: {content}</s>",
    ),
    "phi3": _turns("*: <|{role}|>\n{content}<|end|>\n", prompt="<|assistant|>\n"),
    "phi4": _turns(
        "*: <|im_start|>{role}<|im_sep|>{content}<|im_end|>",
        prompt="<|im_start|>assistant<|im_sep|>",
    ),
    "falcon3": _turns("*: <|{role}|>\n{content}\n", prompt="<|assistant|>\n"),
    "zephyr": _turns("*: <|{role}|>\n{content}<|endoftext|>\n", prompt="<|assistant|>\n"),
    "monarch": (
        "{% for message in messages %}{{ '' if loop.first else '<s>' }}"
        "{{ message.role ~ '\\n' ~ message.content ~ '</s>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<s>assistant\\n' }}{% endif %}"
    ),
    "gemma": _GEMMA,
    "orion": _ORION,
    "openchat": _turns(
        "system: {content}<|end_of_turn|>",
        "user: GPT4 Correct User: {content}<|end_of_turn|>",
        "assistant: GPT4 Correct Assistant: {content}<|end_of_turn|>",
        prompt="GPT4 Correct Assistant:",
    ),
    "vicuna": _turns(
        "system: {content}\n\n",
        "user: USER: {content}\n",
        "assistant: ASSISTANT: {content}</s>\n",
        prompt="ASSISTANT:",
    ),
    "vicuna-orca": _turns(
        "system: SYSTEM: {content}\n",
        "user: USER: {content}\n",
        "assistant: ASSISTANT: {content}</s>\n",
        prompt="ASSISTANT:",
    ),
    "deepseek": _turns(
        "system: {content}",
        "user: ### Instruction:\n{content}\n",
        "assistant: ### Response:\n{content}\n<|EOT|>\n",
        prompt="### Response:\n",
    ),
    "deepseek2": _turns(
        "system: {content}\n\n",
        "user: User: {content}\n\n",
        "assistant: Assistant: {content}<\uff5cend\u2581of\u2581sentence\uff5c>",
        prompt="Assistant:",
    ),
    "deepseek3": _turns(
        "system: {content}\n\n",
        "user: <\uff5cUser\uff5c>{content}",
        "assistant: <\uff5cAssistant\uff5c>{content}<\uff5cend\u2581of\u2581sentence\uff5c>",
        prompt="<\uff5cAssistant\uff5c>",
    ),
    "deepseek-ocr": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "command-r": _turns(
        "system: <|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{content}<|END_OF_TURN_TOKEN|>",
        "user: <|START_OF_TURN_TOKEN|><|USER_TOKEN|>{content}<|END_OF_TURN_TOKEN|>",
        "assistant: <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{content}<|END_OF_TURN_TOKEN|>",
        prompt="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        trims=_ALL,
    ),
    "llama3": _turns(
        "*: <|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
        prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
        trims=_ALL,
    ),
    "chatglm3": _turns("*: <|{role}|>\n {content}", start="[gMASK]sop", prompt="<|assistant|>"),
    "chatglm4": _turns("*: <|{role}|>\n{content}", start="[gMASK]<sop>", prompt="<|assistant|>\n"),
    "glmedge": _turns("*: <|{role}|>\n{content}", prompt="<|assistant|>"),
    "minicpm": _turns("user: <\u7528\u6237>{content}<AI>", "*: {content}", trims=_ALL),
    "exaone3": _EXAONE,
    "exaone4": _EXAONE,
    "exaone-moe": _turns(
        "*: <|{role}|>\n{content}<|endofturn|>\n", prompt="<|assistant|>\n", trims=_ALL
    ),
    "rwkv-world": (
        "{% set names = {'system': 'System: ', 'user': 'User: ', 'assistant': 'Assistant: '} %}"
        "{% for message in messages if message.role in names %}"
        "{{ names[message.role] ~ (message.content | trim) ~ '\\n\\n' }}"
        "{% if loop.last and message.role == 'user' %}{{ 'Assistant:' }}{% endif %}{% endfor %}"
    ),
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "granite-4.1": _GRANITE,
    "gigachat": _GIGACHAT,
    "megrez": _turns(
        "*: <|role_start|>{role}<|role_end|>{content}<|turn_end|>",
        prompt="<|role_start|>assistant<|role_end|>",
    ),
    "yandex": _turns(
        f"user:  {_USER}: {{content}}\n\n",
        f"assistant:  {_ASSISTANT}: {{content}}\n\n",
        prompt=f" {_ASSISTANT}:[SEP]",
    ),
    "bailing": _turns(*_BAILING, _BAILING_ANSWER, prompt="<role>ASSISTANT</role>"),
    "bailing-think": _turns(*_BAILING, _BAILING_ANSWER, prompt="<role>ASSISTANT</role><think>"),
    "bailing2": (
        _IS_FIRST_SYSTEM
        + "{% else %}{{ '<role>SYSTEM</role>detailed thinking off<|role_end|>' }}{% endif %}"
    )
    + _turns(
        *(turn + "<|role_end|>" for turn in (*_BAILING, _BAILING_ANSWER)),
        prompt="<role>ASSISTANT</role>",
    ),
    "llama4": _turns(
        "*: <|header_start|>{role}<|header_end|>\n\n{content}<|eot|>",
        prompt="<|header_start|>assistant<|header_end|>\n\n",
        trims=_ALL,
    ),
    "smolvlm": _turns(
        "system: {content}\n\n",
        "user: User: {content}<end_of_utterance>\n",
        "*: Assistant: {content}<end_of_utterance>\n",
        start="<|im_start|>",
        prompt="Assistant:",
    ),
    "hunyuan-moe": _turns(
        "system: <|startoftext|>{content}<|extra_4|>",
        "assistant: {content}<|eos|>",
        "*: <|startoftext|>{content}<|extra_0|>",
    ),
    "gpt-oss": _turns(
        "assistant: <|start|>assistant<|message|>{content}<|return|>",
        "*: <|start|>{role}<|message|>{content}<|end|>",
        prompt="<|start|>assistant",
    ),
    "hunyuan-dense": _turns(
        f"system: {{content}}{_HOLDER_3}",
        f"assistant: <\uff5chy_Assistant\uff5c>{{content}}{_HOLDER_2}",
        "user: <\uff5chy_User\uff5c>{content}<\uff5chy_Assistant\uff5c>",
    ),
    "hunyuan-vl": _turns(
        f"system: {{content}}{_HOLDER_3}",
        "assistant: {content}<\uff5chy_Assistant\uff5c>",
        "user: {content}<\uff5chy_User\uff5c>",
        start="<\uff5chy_begin\u2581of\u2581sentence\uff5c>",
    ),
    "kimi-k2": _turns(
        "system: <|im_system|>system<|im_middle|>{content}<|im_end|>",
        "user: <|im_user|>user<|im_middle|>{content}<|im_end|>",
        "assistant: <|im_assistant|>assistant<|im_middle|>{content}<|im_end|>",
        "*: <|im_system|>tool<|im_middle|>{content}<|im_end|>",
        prompt="<|im_assistant|>assistant<|im_middle|>",
    ),
    "seed_oss": _turns(
        "assistant: <seed:bos>assistant\n{content}<seed:eos>",
        "*: <seed:bos>{role}\n{content}<seed:eos>",
        prompt="<seed:bos>assistant\n",
        trims="assistant",
    ),
    "grok-2": _turns(
        "system: System: {content}<|separator|>\n\n",
        "user: Human: {content}<|separator|>\n\n",
        "assistant: Assistant: {content}<|separator|>\n\n",
        prompt="Assistant:",
        trims="system user",
    ),
    "pangu-embedded": (
        _IS_FIRST_SYSTEM + "{% else %}{{ '[unused9]\u7cfb\u7edf\uff1a[unused10]' }}{% endif %}"
    )
    + _turns(
        "system: [unused9]\u7cfb\u7edf\uff1a{content}[unused10]",
        "user: [unused9]\u7528\u6237\uff1a{content}[unused10]",
        "assistant: [unused9]\u52a9\u624b\uff1a{content}[unused10]",
        "tool: [unused9]\u5de5\u5177\uff1a{content}[unused10]",
        prompt="[unused9]\u52a9\u624b\uff1a",
    ),
    "solar-open": _turns(
        "*: <|begin|>{role}<|content|>{content}<|end|>", prompt="<|begin|>assistant"
    ),
}
"""name -> Jinja text"""

"""litellm over OpenAI's format, as people name a llama-server there, and Anthropic's."""

import os

import litellm

ASK = [{"role": "user", "content": "Say hello."}]
COMMON = {"api_key": "-", "messages": ASK, "max_tokens": 12, "temperature": 0}

base = f"{os.environ['SERVER_URL']}/v1"
answer = litellm.completion(model="openai/demo", api_base=base, **COMMON)
assert answer.choices[0].message.content
parts = litellm.completion(model="openai/demo", api_base=base, stream=True, **COMMON)
streamed = "".join(part.choices[0].delta.content or "" for part in parts)
assert streamed == answer.choices[0].message.content
anthropic = litellm.completion(model="anthropic/demo", api_base=os.environ["SERVER_URL"], **COMMON)
assert anthropic.choices[0].message.content
print("ok")

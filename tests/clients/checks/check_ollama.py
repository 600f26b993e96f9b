"""The ollama package: tags, show, chat, generate, embed."""

import os

from ollama import Client

client = Client(host=os.environ["SERVER_URL"])
OPTIONS = {"num_predict": 12, "temperature": 0}
ASK = [{"role": "user", "content": "Say hello."}]

name = client.list().models[0].model
assert name.startswith("demo"), name
assert client.show(name).details is not None
assert client.ps().models
answer = client.chat(model=name, messages=ASK, options=OPTIONS)
assert answer.message.content
parts = list(client.chat(model=name, messages=ASK, options=OPTIONS, stream=True))
assert "".join(part.message.content for part in parts) == answer.message.content
assert parts[-1].done
text = client.generate(model=name, prompt="Say hello.", options=OPTIONS)
assert text.response
schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
shaped = client.chat(
    model=name, messages=ASK, format=schema, options={"num_predict": 50, "temperature": 0}
)
assert '"n"' in shaped.message.content
print("ok")

"""Simon Willison's llm with llm-llama-server, whose address is fixed; here it is another one."""

import os

import llm

for name in ("llama-server", "llama-server-tools"):
    model = llm.get_model(name)
    model.api_base = f"{os.environ['SERVER_URL']}/v1"
    response = model.prompt("Say hello.", max_tokens=12, temperature=0)
    assert response.text()
    assert response.usage().output <= 12
    assert "".join(model.prompt("Say hello.", max_tokens=12, temperature=0))
print("ok")

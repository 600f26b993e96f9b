"""Chat through OpenAI's client, and see which tokens were drafted and accepted.

pip install openai
headstart serve &
python examples/openai_client.py      # or with a prompt; HEADSTART_URL names another server
"""

from __future__ import annotations

import codecs
import os
import sys

from openai import OpenAI


def main(prompt: str) -> None:
    """Stream an answer; accepted draft tokens come out green, numbers at the end."""
    client = OpenAI(
        base_url=os.environ.get("HEADSTART_URL", "http://127.0.0.1:8080") + "/v1",
        api_key=os.environ.get("HEADSTART_API_KEY", "none"),
    )
    stream = client.chat.completions.create(
        model="any",  # the server has one model
        messages=[{"role": "user", "content": prompt}],
        max_tokens=200,
        stream=True,
        extra_body={"provenance": True},
    )
    # a token may end inside a character
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    timings: dict[str, float] = {}
    for chunk in stream:
        timings = (chunk.model_extra or {}).get("timings", timings)
        for choice in chunk.choices:
            for token in (choice.model_extra or {}).get("provenance", {}).get("tokens", []):
                piece = token["piece"]
                text = decode(piece.encode() if isinstance(piece, str) else bytes(piece))
                print(f"\033[32m{text}\033[0m" if token["source"] else text, end="", flush=True)
    drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
    print(
        f"\n{timings['predicted_per_second']:.1f} tokens/s, {accepted} of {drafted} draft tokens "
        "accepted"
    )


RENAME = """Rename `data` to `buffer`:
```python
def write(self, data):
    self.file.write(data)
    return len(data)
```"""

if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or RENAME)

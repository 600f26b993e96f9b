"""What the server prints once it is ready."""

from __future__ import annotations


def announce(is_demo: bool, url: str) -> None:
    """Print the address and something to try."""
    if is_demo:
        print(
            "Serving the embedded demo model: tiny, it copies and renames code. Use -m FILE for a "
            "real one."
        )
    code = "def write(self, data):\\n    self.file.write(data)\\n    return len(data)"
    question = f"Rename `data` to `buffer`:\\n```python\\n{code}\\n```"
    body = '{"messages": [{"role": "user", "content": "' + question + '"}], "temperature": 0}'
    print(
        f"Headstart listens on {url}. Try:\n\n  curl {url}/v1/chat/completions -d '{body}'\n",
        flush=True,
    )

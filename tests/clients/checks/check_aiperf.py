"""AIPerf measures streamed chats and prints what was drafted and accepted."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from byte_tokenizer import write_tokenizer

PROMPT = "Rename `data` to `rows`:\n```python\ndef write(data):\n    self.file.write(data)\n```"
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_tokenizer(folder)
    prompts = [json.dumps({"text": PROMPT.replace("file", f"file{n}")}) for n in range(8)]
    (folder / "prompts.jsonl").write_text("\n".join(prompts))
    command = [str(Path(sys.executable).parent / "aiperf"), "profile", "--model", "demo"]
    command += ["--url", os.environ["SERVER_URL"], "--endpoint-type", "chat", "--streaming"]
    command += ["--concurrency", "2", "--request-count", "8", "--tokenizer", name]
    command += ["--input-file", str(folder / "prompts.jsonl")]
    command += ["--custom-dataset-type", "single_turn", "--ui-type", "simple"]
    command += ["--artifact-dir", str(folder / "out"), "--extra-inputs", "max_tokens:48"]
    subprocess.run(command, check=True, env=os.environ | {"HOME": name})
    measured = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
assert measured["request_count"]["avg"] == 8
assert measured["spec_decode_accepted_draft_tokens"]["avg"] > 0, sorted(measured)
print("ok")

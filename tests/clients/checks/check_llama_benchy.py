"""llama-benchy measures prompts and answers, with a tokenizer of bytes and a book from here."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from byte_tokenizer import write_tokenizer

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_tokenizer(folder)
    (folder / "book.txt").write_text("It was a bright cold day in April. " * 200)
    handler = partial(SimpleHTTPRequestHandler, directory=name)
    books = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=books.serve_forever, daemon=True).start()
    command = [str(Path(sys.executable).parent / "llama-benchy")]
    command += ["--base-url", f"{os.environ['SERVER_URL']}/v1", "--model", "demo"]
    command += ["--tokenizer", name, "--book-url", f"http://127.0.0.1:{books.server_port}/book.txt"]
    command += ["--pp", "64", "--tg", "16", "--runs", "1", "--no-cache", "--exact-tg"]
    command += ["--skip-coherence", "--latency-mode", "generation", "--concurrency", "1", "2"]
    command += ["--format", "json", "--save-result", str(folder / "result.json")]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1", "HOME": name})
    measured = json.loads((folder / "result.json").read_text())["benchmarks"]
assert [one["concurrency"] for one in measured] == [1, 2]
# a prompt that took less than the latency, which a busy machine makes long, has no speed
assert all(one["tg_throughput"]["mean"] > 0 for one in measured)
print("ok")

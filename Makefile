# make serve | test | test-page | test-clients | test-cluster | test-device | check | bench | fix
#
#   ARGS=...        flags for the command:   make serve ARGS="-m my.gguf -md draft.gguf"
#   CMAKE_ARGS=...  how libllama is built:   make serve CMAKE_ARGS="-DGGML_CUDA=on"
#                   (or METAL, VULKAN, RPC)
#   LLAMA_WHEELS=.. index of prebuilt libllama wheels, instead of compiling
#   PYTHON=...      the Python (3.11 or newer) that makes .venv

PY := .venv/bin/python
ARGS ?=

.PHONY: serve test test-page test-clients test-cluster test-device check bench fix setup setup-dev
.DEFAULT_GOAL := serve

serve: setup
	@exec $(PY) -m headstart serve $(ARGS)

test: setup-dev
	@$(PY) tests/fetch_vocabs.py --if-missing
	@$(PY) -m pytest -n auto --maxprocesses 8 --dist loadfile \
		--ignore=tests/page --ignore=tests/cluster --ignore=tests/device $(ARGS)

test-page: setup-dev
	@scripts/test_page $(ARGS)

test-clients: setup-dev
	@$(PY) -m tests.clients.run $(ARGS)

test-cluster: setup-dev
	@scripts/test_cluster $(ARGS)

test-device: setup-dev
	@libllama=$$(scripts/software_vulkan) && GGML_VK_VISIBLE_DEVICES=0 \
		HEADSTART_LIBLLAMA=$$libllama $(PY) -m pytest -n auto tests/device $(ARGS)

check: setup-dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: setup-dev
	@$(PY) -m benchmarks.overhead $(ARGS)

fix: setup-dev
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .
	@$(PY) docs/generate.py

setup:
	@scripts/setup

setup-dev:
	@scripts/setup dev

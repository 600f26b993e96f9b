"""The HTTP side: how clients reach the server, several models, tools, recorded texts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstart.config.fields import option
from headstart.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP side."""

    host: str = option(
        "127.0.0.1",
        "addresses to listen on, separated by commas; one that ends in .sock is a Unix socket",
    )
    port: int = option(8080, "port to listen on; 0 picks a free one", least=0, most=65535)
    reuse_port: bool = option(False, "let other processes listen on the same port")
    api_prefix: str = option("", "prefix of all paths, for instance /llm")
    ssl_key_file: str | None = option(None, "file with the private key for HTTPS, in PEM format")
    ssl_cert_file: str | None = option(None, "file with the certificate for HTTPS, in PEM format")
    api_key: str | None = option(
        None,
        "key that clients must send; several separated by commas",
        is_secret=True,
        separator=",",
    )
    api_key_file: str | None = option(
        None, "file with one key per line; lines that start with # are comments"
    )
    allowed_hosts: str | None = option(
        None,
        "without an API key: further host names that requests may use, separated by commas; * for "
        "any",
    )
    cors_origins: str | None = option(
        None,
        "origins, separated by commas, whose web pages may use the server; localhost for pages "
        "from this machine, * for any. Default: any with an API key (with tools: localhost), else "
        "only the server's own page",
    )
    cors_methods: str = option(
        "GET, POST, DELETE, OPTIONS", "methods that pages from --cors-origins may use"
    )
    cors_headers: str = option(
        "*", "request headers that these pages may send, separated by commas; * for all"
    )
    cors_credentials: bool = option(True, "let these pages send credentials")
    max_connections: int = option(
        1000,
        "open connections; beyond that the longest idle one is closed, or new ones get 503",
        least=1,
    )
    chat_template: str | None = option(
        None,
        "chat template to use instead of the model's: Jinja text, or llama-server's name of one",
    )
    chat_template_file: str | None = option(None, "file with a Jinja chat template")
    sse_ping_interval: int = option(
        30, "seconds between comments in a silent stream; 0 or -1: none", least=-1
    )
    max_body_mb: int = option(
        4,
        "largest accepted request body in MiB; at least 64 with --mmproj and in front of servers",
        least=1,
    )
    timeout: int = option(
        3600,
        "seconds after which an idle connection is closed; at most 60 within a request",
        least=1,
    )
    sleep_idle_seconds: int = option(
        -1,
        "seconds without a request after which the model is unloaded until the next one; -1: never",
        least=-1,
    )
    page: bool = option(True, "serve the page at /", "--webui")
    path: str | None = option(None, "folder with another page to serve at /")
    slots: bool = option(True, "serve /slots")
    slot_save_path: str | None = option(
        None, "folder for POST /slots/{id}?action=save and restore, which need it"
    )
    image_urls: bool = option(
        False, "fetch images that requests name by http or https URLs of public addresses"
    )
    media_path: str | None = option(None, "folder of images that requests may name, as file://name")
    metrics: bool = option(True, "serve /metrics")
    props: bool = option(False, "accept POST /props")
    tenant_header: str | None = option(
        None,
        "header in which a proxy with the API key names the tenant of a request. Default: each "
        "key is a tenant",
    )
    tenant_slot_files_mb: int = option(
        102_400,
        "MiB of one tenant's files in --slot-save-path, each at least 1, from which on saves get "
        "429",
        least=0,
    )
    tenant_responses_mb: int = option(
        64,
        "MiB of JSON that /v1/responses keeps per tenant; four times that in total",
        least=1,
    )

    def __post_init__(self) -> None:
        if bool(self.ssl_key_file) != bool(self.ssl_cert_file):
            raise ConfigError("HTTPS needs both --ssl-key-file and --ssl-cert-file")
        if self.api_prefix and not self.api_prefix.startswith("/"):
            raise ConfigError(
                f"--api-prefix is {self.api_prefix!r} but must start with a slash, as /llm"
            )

    def with_images(self) -> ServerConfig:
        """Settings for requests with images, which are larger."""
        return replace(self, max_body_mb=max(64, self.max_body_mb))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Which models there are, and how many of them are loaded at once."""

    models_dir: str | None = option(
        None,
        "without --model: serve every GGUF file in this folder, and every subfolder that holds "
        "one, under its name",
    )
    models_preset: str | None = option(
        None,
        "without --model: INI file with a section of flags per model, and [*] for all; with it: "
        "one section, whose flags are used",
    )
    models_max: int = option(
        4, "models that are loaded at the same time, if they fit; 0: any number", least=0
    )
    models_autoload: bool = option(True, "load a model when a request names it")
    models_memory: str | None = option(
        None,
        "MiB that all loaded models may take, of main memory or by device: 16000, or "
        "main=16000,CUDA0=22000; default: what is free before the first, less --fit-target",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    """Tools on the server's machine, for all clients that have access."""

    tools: str | None = option(
        None,
        "built-in tools that clients may run on this machine, separated by commas, or all: "
        "read_file, file_glob_search, grep_search, exec_shell_command, write_file, edit_file, "
        "get_info. Clients can then read and write files and run programs as the server's user",
    )
    tools_runtime: str | None = option(
        None,
        "where the built-in tools run instead of on this machine: docker:IMAGE or podman:IMAGE, "
        "docker-container:ID or podman-container:ID of a running one, or ssh:TARGET",
    )
    mcp_servers_config: str | None = option(
        None,
        'JSON file with MCP servers, {"mcpServers": {NAME: {"command", "args", "env", "cwd", '
        '"timeout_ms"}}}; their tools are offered to clients as NAME_TOOL (needs '
        "`pip install headstart[tools]`)",
    )
    mcp_servers_json: str | None = option(None, "the same as text", is_secret=True)
    ui_mcp_proxy: bool = option(
        False,
        "forward requests of pages to any address (/cors-proxy), for MCP servers that do not "
        "allow pages. Clients then reach what the server reaches",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingConfig:
    """Which answers are written to files, and for how long they stay."""

    record_texts: str | None = option(
        None,
        "folder in which prompts and answers are kept for headstart distill; without API keys "
        "those of all requests but with 'store': false",
    )
    record_tenants: str | None = option(
        None,
        "with API keys: keys or tenants, separated by commas, whose requests are recorded, or "
        "all; others only with 'store': true in the request",
        is_secret=True,
    )
    record_mb: int = option(1024, "MiB that recorded texts may take; the oldest make room", least=1)
    record_days: int = option(30, "days after which recorded texts are deleted", least=1)

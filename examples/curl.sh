#!/bin/sh
# Ask a running server with curl: chat, then the same text without speculation, then what was drafted in total.
set -eu
URL=${HEADSTART_URL:-http://127.0.0.1:8080}

ask() {
    curl -sSf "$URL/v1/chat/completions" -H "Authorization: Bearer ${HEADSTART_API_KEY:-none}" -d "$1"
    echo
}

ask '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32, "seed": 1}'
ask '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32, "seed": 1, "speculative": {"mode": "off"}}'

curl -sSf -H "Authorization: Bearer ${HEADSTART_API_KEY:-none}" "$URL/metrics" | grep '^headstart_draft_tokens'

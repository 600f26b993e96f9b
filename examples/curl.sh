#!/bin/sh
# Ask a running server with curl: an edit, then the same without speculation, then what was drafted in total.
# The two answers are the same; "timings" at their ends says what the drafts saved.
set -eu
URL=${HEADSTART_URL:-http://127.0.0.1:8080}
RENAME='Rename `data` to `buffer`:\n```python\ndef write(self, data):\n    self.file.write(data)\n    return len(data)\n```'

ask() {
    curl -sSf "$URL/v1/chat/completions" -H "Authorization: Bearer ${HEADSTART_API_KEY:-none}" \
        -d "{\"messages\": [{\"role\": \"user\", \"content\": \"$RENAME\"}], \"seed\": 1, $1}"
    echo
}

ask '"speculative": {"mode": "auto"}'
ask '"speculative": {"mode": "off"}'

curl -sSf -H "Authorization: Bearer ${HEADSTART_API_KEY:-none}" "$URL/metrics" | grep -E '^headstart_draft_tokens(_accepted)?_total'

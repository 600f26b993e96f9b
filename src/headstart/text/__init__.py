"""Text in and out of tokens: chat templates and incremental decoding. Knows no request and no JSON."""

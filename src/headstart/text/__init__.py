"""Text in and out of tokens: chat templates, incremental decoding. Knows no request, no JSON."""

"""The HTTP server: APIs of llama-server, OpenAI, Anthropic and Ollama. Knows JSON, no logits."""

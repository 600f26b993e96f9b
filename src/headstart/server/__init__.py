"""HTTP in and out, in the formats of llama-server and OpenAI. Knows JSON, never a logit."""

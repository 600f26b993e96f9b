"""Reasoning and tool calls in a model's text: how a model writes them, and streaming parsers."""

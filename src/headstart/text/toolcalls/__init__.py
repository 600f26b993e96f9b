"""Thoughts and tool calls in a model's text: how a template's model writes them, and reading them
while the text arrives. Knows no request and no token.
"""

"""Prompts that were computed already and are not in the model's cache now."""

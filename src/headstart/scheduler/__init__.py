"""Slots, batches and the step that advances all requests. Knows tokens and logits, not JSON."""

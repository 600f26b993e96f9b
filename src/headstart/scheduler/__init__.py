"""Slots, batches and the step that moves all requests on. Knows token ids and logits, never JSON."""

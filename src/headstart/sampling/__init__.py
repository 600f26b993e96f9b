"""The sampling rule: which token comes at which position, given logits, parameters and seed."""

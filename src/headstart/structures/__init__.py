"""Plain data structures: they know tokens, not models, requests or speculators."""

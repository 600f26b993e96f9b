"""The contents of `headstart.testing`, for tests of speculators."""

"""Compiled constraints: which tokens they allow at each position of an answer."""

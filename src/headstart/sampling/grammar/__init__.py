"""Constraints on an answer, compiled: which tokens they leave at each position."""

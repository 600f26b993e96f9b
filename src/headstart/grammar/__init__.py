"""Constraints on an answer: what a request may ask for, and which tokens that leaves."""

from headstart.grammar.constraint import Constraint, ConstraintKind, ThoughtMarks

__all__ = ["Constraint", "ConstraintKind", "ThoughtMarks"]

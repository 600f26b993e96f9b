"""How many tokens to draft, for which slots, by which speculator. Arithmetic, and the file
of what was learned (`state`); start reading at `controller`.
"""

from headstart.control.controller import Controller
from headstart.control.values import AskedAnswer, Step

__all__ = ["AskedAnswer", "Controller", "Step"]

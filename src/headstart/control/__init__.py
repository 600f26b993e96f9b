"""How many tokens to draft, for which slots, by which speculator. Pure arithmetic; start reading
at `controller`.
"""

from headstart.control.controller import Controller
from headstart.control.values import (
    Allowance,
    ModelDraftCall,
    ModelSlot,
    Outcome,
    Step,
)

__all__ = [
    "Allowance",
    "Controller",
    "ModelDraftCall",
    "ModelSlot",
    "Outcome",
    "Step",
]

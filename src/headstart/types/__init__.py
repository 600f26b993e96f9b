"""Values and protocols that cross folder borders. Imports nothing else of this package at run time.

A *row* is one token decoded at one position of one sequence. A *sequence* is a line of the KV
cache. Token ids are plain ints; text is bytes, because a token may end inside a character.

Values are immutable by convention. Those created for each slot and step are not frozen dataclasses,
because creating a frozen one takes a microsecond, seven times as long.
"""

from __future__ import annotations

from headstart.types.drafts import FINAL_STATE as FINAL_STATE
from headstart.types.drafts import LAST_STATE as LAST_STATE
from headstart.types.drafts import NO_DRAFT as NO_DRAFT
from headstart.types.drafts import Choose as Choose
from headstart.types.drafts import DecodedStates as DecodedStates
from headstart.types.drafts import Draft as Draft
from headstart.types.drafts import DraftLegality as DraftLegality
from headstart.types.drafts import DraftMode as DraftMode
from headstart.types.drafts import DraftRequest as DraftRequest
from headstart.types.drafts import TokenChoice as TokenChoice
from headstart.types.engine import Batch as Batch
from headstart.types.engine import Bytes as Bytes
from headstart.types.engine import CacheKind as CacheKind
from headstart.types.engine import Checkpoint as Checkpoint
from headstart.types.engine import ContextFullError as ContextFullError
from headstart.types.engine import Engine as Engine
from headstart.types.engine import Filters as Filters
from headstart.types.engine import FimTokens as FimTokens
from headstart.types.engine import Logits as Logits
from headstart.types.engine import ModelInfo as ModelInfo
from headstart.types.engine import SavedState as SavedState
from headstart.types.engine import Vocab as Vocab
from headstart.types.rows import Rows as Rows
from headstart.types.rows import passes as passes

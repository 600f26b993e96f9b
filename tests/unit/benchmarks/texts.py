"""Texts that repeat themselves with changes, and a machine to replay them on, without a model."""

from __future__ import annotations

from random import Random

from benchmarks.lib.curves import CostCurve
from benchmarks.lib.replay import Replay, Text

from headstart.testing import ByteVocab, FakeEngine

CPU = CostCurve.parse("1:48,2:64,4:97,8:172,16:314,32:637")
TILES = CostCurve.parse("1:74,4:80,5:120,8:126,9:170,12:176,13:220,16:226,32:450")
DRAFT = CostCurve.parse("1:4,8:11,64:60")


def make_texts(
    num: int, temperature: float = 0.0, *, length: int = 60, seed: int = 0
) -> list[Text]:
    """Prompts of a few lines; answers that mostly repeat them."""
    random = Random(seed)
    texts = []
    for i in range(num):
        lines = [
            [random.randrange(97, 123) for _ in range(random.randrange(4, 16))] + [10]
            for _ in range(6)
        ]
        answer: list[int] = []
        while len(answer) < length:
            line = list(random.choice(lines))
            if random.random() < 0.4:
                line[random.randrange(len(line))] = random.randrange(97, 123)
            answer += line
        prompt = [token for line in lines for token in line]
        texts.append(Text("lines", temperature, i + 1, prompt, answer[:length]))
    return texts


def make_replay(num_users: int = 1, curve: CostCurve = CPU, *, has_draft: bool = True) -> Replay:
    def draft_engine() -> FakeEngine:
        return FakeEngine(ByteVocab.size, order=1, num_cells=4096)

    return Replay(
        target=FakeEngine(ByteVocab.size),
        vocab=ByteVocab(),
        curve=curve,
        num_users=num_users,
        draft=(draft_engine, DRAFT) if has_draft else None,
    )

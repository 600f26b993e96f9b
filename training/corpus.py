"""Training text: this interpreter's standard library, and chat tasks built from its functions.

    python -m training.corpus --work DIR

writes texts.json (whole files), tasks.json (chats) and held_out.json (chats about functions that
occur in no task).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from headstart.extras.bench.library import block, names_of, read_files, tree_of

MIN_FUNCTION_CHARS = 80
NUM_HELD_OUT = 200
NEW_NAMES = """
    value result item node buffer count index total path name data key text line size token state
    offset width entry limit source target handler option parent child queue stack record first
    second left right start end config cache reader writer field label output number
""".split()  # noqa: SIM905 (a list of 48 quoted words reads worse)
GREETINGS = (
    "Hello", "Hi", "Hello!", "Hey", "Who are you?", "What are you?", "What can you do?", "Help",
    "help", "How are you?", "Good morning", "Hi there!", "Tell me about yourself.", "What is this?",
)  # fmt: skip
INTRODUCTION = (
    "I am the demo model of this server: a small language model trained on Python's standard "
    "library. "
    "Ask me to rename a variable, repeat code, or describe a function as JSON."
)


Task = Callable[[str, Random], str | None]  # None: this function cannot be asked about that


def chat(question: str, answer: str) -> str:
    """Return one exchange in ChatML."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def rename(function: str, random: Random) -> str | None:
    """Ask to rename an argument or a local variable to a name that does not occur yet."""
    old_names = list(dict.fromkeys(names_of(function)))
    new_names = [name for name in NEW_NAMES if not re.search(rf"\b{name}\b", function)]
    if not old_names or not new_names:
        return None
    old, new = random.choice(old_names), random.choice(new_names)
    question = random.choice(
        (
            "Rename `{old}` to `{new}`:\n{code}",
            "Rename the variable `{old}` to `{new}` in this code.\n{code}",
            "{code}\nRename `{old}` to `{new}`.",
        )
    )
    renamed = re.sub(rf"\b{re.escape(old)}\b", new, function)
    return chat(question.format(old=old, new=new, code=block(function)), block(renamed))


def repeat(function: str, random: Random) -> str:
    """Ask for the code as it is."""
    question = random.choice(("Repeat this code:\n", "Repeat the following code.\n"))
    return chat(question + block(function), block(function))


def describe(function: str, random: Random) -> str:
    """Ask for name, arguments and whether something is returned, as JSON."""
    tree = tree_of(function)
    answer = {
        "name": tree.name,
        "arguments": [argument.arg for argument in tree.args.args],
        "returns": any(
            isinstance(node, ast.Return) and node.value is not None for node in ast.walk(tree)
        ),
    }
    question = random.choice(
        ("Describe this function as JSON:\n", "Give the signature of this function as JSON.\n")
    )
    return chat(question + block(function), json.dumps(answer))


def list_calls(function: str, random: Random) -> str | None:
    """Ask which functions the code calls; functions with one to six calls only."""
    called = (node.func for node in ast.walk(tree_of(function)) if isinstance(node, ast.Call))
    names = (
        func.id if isinstance(func, ast.Name) else func.attr
        for func in called
        if isinstance(func, (ast.Name, ast.Attribute))
    )
    unique = list(dict.fromkeys(names))
    if not 1 <= len(unique) <= 6:
        return None
    answer = "\n".join(f"- `{name}`" for name in unique)
    return chat("Which functions does this code call?\n" + block(function), answer)


def read_library(max_function_chars: int, random: Random) -> tuple[list[str], list[str]]:
    """Return the standard library's files and its functions of moderate size, both shuffled."""
    texts: list[str] = []
    functions: list[str] = []
    for text, own in read_files(random):
        texts.append(text)
        functions += [one for one in own if MIN_FUNCTION_CHARS < len(one) < max_function_chars]
    random.shuffle(functions)
    return texts, functions


def make_tasks(functions: Sequence[str], num_rounds: int, random: Random) -> list[str]:
    """Return chats about every function, `num_rounds` times with other names and questions,
    shuffled.
    """
    tasks: list[str | None] = []
    for _ in range(num_rounds):
        for function in functions:
            tasks.append(rename(function, random) or repeat(function, random))
            task = _second_task(random.random())
            if task:
                tasks.append(task(function, random))
            if random.random() < 0.03:
                tasks.append(chat(random.choice(GREETINGS), INTRODUCTION))
    made = [task for task in tasks if task]
    random.shuffle(made)
    return made


def _second_task(chance: float) -> Task | None:
    if chance < 0.2:
        return repeat
    if chance < 0.5:
        return describe
    return list_calls if chance < 0.65 else None


def main() -> None:
    """Parse the command line and write the corpus."""
    parser = argparse.ArgumentParser(description="Collect the training text.")
    parser.add_argument("--work", type=Path, required=True, help="folder that all stages share")
    parser.add_argument(
        "--rounds", type=int, default=4, help="tasks per function, each with other names"
    )
    parser.add_argument(
        "--max-function-chars", type=int, default=700, help="longer functions make no tasks"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    texts, functions = read_library(args.max_function_chars, Random(args.seed))
    held_out, used = functions[:NUM_HELD_OUT], functions[NUM_HELD_OUT:]
    parts = {
        "texts": texts,
        "tasks": make_tasks(used, args.rounds, Random(args.seed + 1)),
        "held_out": make_tasks(held_out, 1, Random(args.seed + 2)),
    }
    args.work.mkdir(parents=True, exist_ok=True)
    for name, items in parts.items():
        (args.work / f"{name}.json").write_text(json.dumps(items))
        print(f"{name}: {len(items)}, {sum(map(len, items)) / 1e6:.1f} M characters")


if __name__ == "__main__":
    main()

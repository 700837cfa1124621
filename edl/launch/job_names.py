"""Names for jobs that were given none: easy to type and to tell apart."""

from __future__ import annotations

import random

QUALITIES = (
    "amber", "bold", "brave", "brisk", "calm", "clear", "clever", "cosy", "eager", "early", "fair", "fleet",
    "fresh", "gentle", "glad", "golden", "grand", "happy", "jolly", "keen", "kind", "light", "lively", "lucky",
    "mellow", "merry", "mild", "neat", "nimble", "noble", "plain", "proud", "quick", "quiet", "ready", "rosy",
    "sharp", "silver", "smart", "spry", "steady", "sunny", "swift", "tidy", "warm", "wise", "witty", "young",
)  # fmt: skip
ANIMALS = (
    "badger", "beaver", "bison", "crane", "deer", "dove", "eagle", "falcon", "finch", "fox", "gecko", "goose",
    "hare", "hawk", "heron", "horse", "ibex", "jay", "koala", "lark", "lemur", "lion", "llama", "lynx", "magpie",
    "marten", "mole", "moose", "newt", "otter", "owl", "panda", "pony", "puffin", "quail", "raven", "robin", "seal",
    "shrew", "sparrow", "stork", "swan", "tapir", "tern", "tiger", "trout", "turtle", "vole", "weasel", "whale",
    "wolf", "wren", "yak", "zebra",
)  # fmt: skip


def invent(chance: random.Random) -> str:
    """Return a name like brisk-otter-42."""
    return f"{chance.choice(QUALITIES)}-{chance.choice(ANIMALS)}-{chance.randrange(10, 100)}"

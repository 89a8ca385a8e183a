"""The names and values of generated databases: pairs of words, such as `night_trains`, `unit_cost` or `Old Oak`.

A fixed function of the pair determines its share: train, dev or val. A name or value of a held-out database is
therefore in no training database, whatever the seed, although the words that it is made of are.
"""

import zlib
from dataclasses import dataclass
from functools import cache

SHARES = ("train", "dev", "val")


@dataclass(frozen=True)
class Pairs:
    """First words, second words, and what is between them."""

    first: str
    second: str
    between: str = "_"


PAIRS = {
    "table": Pairs(
        "night city river farm field sea mountain garden court royal north south old young town stone forest island "
        "desert harbour castle summer winter state market",
        "trains clubs boats cows roads players shops singers books guests schools films drivers towers camps bridges "
        "pilots dancers trees judges",
    ),
    "number": Pairs(
        "unit base net total yearly daily last start final mean extra peak inner home sale",
        "cost price size weight speed score length depth income rent volume points salary height rank",
    ),
    "text": Pairs(
        "main first birth local common second house body trade short public native",
        "color country style season brand genre region title shape status origin label",
    ),
    "value": Pairs(
        "Red Blue Green Golden Silver Black White Bright Dark Wild Quiet Lucky Little Great Upper Lower",
        "Oak Pine Rock Star Moon Wind Rain Bird Fox Wolf Bear Rose Lake Hill Sand Snow",
        between=" ",
    ),
}


def share_of(name: str) -> str:
    """Return the one share that a name or value belongs to: train (70 %), dev (10 %) or val (20 %)."""
    bucket = zlib.crc32(name.encode()) % 20
    return "val" if bucket < 4 else "dev" if bucket < 6 else "train"


@cache
def words(kind: str, share: str) -> tuple[str, ...]:
    """Return the names of one kind, `table`, `number`, `text` or `value`, that belong to a share."""
    pairs = PAIRS[kind]
    made = (f"{first}{pairs.between}{second}" for first in pairs.first.split() for second in pairs.second.split())
    return tuple(name for name in made if share_of(name) == share)

"""A generated encyclopaedia: people, firms, towns and rivers, linked by facts, and questions that follow the links.

The entities belong to three shares that no fact links. A question stays in the share of its first entity, so that no
entity of a held-out question comes up in a training question.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

UNANSWERABLE = "unanswerable"


def listed(text: str) -> tuple[str, ...]:
    """The words of `text`."""
    return tuple(text.split())


@dataclass(frozen=True)
class Relation:
    """An attribute of one kind of entity: what kind it leads to, and how passages and questions word it."""

    subject: str
    target: str
    passage: str
    nouns: tuple[str, ...]


RELATIONS = {
    "born": Relation("person", "town", "{x} was born in {y}.", ("birthplace", "home town")),
    "works": Relation("person", "firm", "{x} works for {y}.", ("employer", "workplace")),
    "founded": Relation("firm", "person", "{x} was founded by {y}.", ("founder", "creator")),
    "seat": Relation("firm", "town", "{x} has its seat in {y}.", ("head office", "location")),
    "river": Relation("town", "river", "{x} lies on the river {y}.", ("river", "waterway")),
    "mayor": Relation("town", "person", "{x} has the mayor {y}.", ("mayor", "leader")),
    "source": Relation("river", "town", "{x} has its source near {y}.", ("origin", "beginning")),
    "mouth": Relation("river", "town", "{x} has its mouth at {y}.", ("mouth", "end")),
}
"""By the word that finds the fact in the encyclopaedia."""
HEADS = ("What is {chain}?", "Name {chain}.", "Which one is {chain}?", "Find {chain}.")
SIZES = {
    "train": {"person": 500, "firm": 150, "town": 200, "river": 100},
    "dev": {"person": 100, "firm": 40, "town": 50, "river": 30},
    "val": {"person": 100, "firm": 40, "town": 50, "river": 30},
}
MISSING = 0.1
"""Share of the facts that the encyclopaedia lacks."""
HOPS, HOP_WEIGHTS = (2, 3, 4), (5, 3, 2)
UNANSWERABLE_SHARE = 0.2
STARTS = listed("Al Bar Cor Dal El Fen Gor Hal Is Jor Kel Lor Mar Nor Or Pel Quil Ros Sel Tar Ul Var Wil Yar Zan")
MIDDLES = listed("a e i o u")
ENDS = listed("ba bin da don fa gan ka kin la lor ma mir na nel pa ra rin sa stor ta tin va wen za")


@dataclass(frozen=True)
class World:
    """All facts: an object by subject and relation, None where the encyclopaedia lacks it; and who is in a share."""

    facts: dict[tuple[str, str], str | None]
    shares: dict[str, dict[str, list[str]]]

    def passages(self) -> Iterator[tuple[str, str]]:
        """The subject and the sentence of each fact that the encyclopaedia has."""
        for (subject, relation), target in self.facts.items():
            if target is not None:
                yield subject, RELATIONS[relation].passage.format(x=subject, y=target)


@dataclass(frozen=True)
class Question:
    """A question with the chain of relations behind it, from its first entity on."""

    text: str
    start: str
    chain: tuple[str, ...]
    answer: str


def build_world(seed: int) -> World:
    """The world of a seed."""
    rng = random.Random(seed)
    names = ["".join(parts) for parts in product(STARTS, MIDDLES, ENDS)]
    rng.shuffle(names)
    shares = {
        share: {kind: [names.pop() for _ in range(count)] for kind, count in sizes.items()}
        for share, sizes in SIZES.items()
    }
    facts: dict[tuple[str, str], str | None] = {}
    for kinds in shares.values():
        for word, relation in RELATIONS.items():
            for subject in kinds[relation.subject]:
                target = rng.choice([name for name in kinds[relation.target] if name != subject])
                facts[subject, word] = None if rng.random() < MISSING else target
    return World(facts, shares)


def walk(world: World, start: str, chain: tuple[str, ...]) -> list[str | None]:
    """The entities that a chain leads to, one for each relation; it ends with None where a fact is missing."""
    reached: list[str | None] = []
    current: str | None = start
    for relation in chain:
        if current is None:
            break
        current = world.facts[current, relation]
        reached.append(current)
    return reached


def draw_chain(rng: random.Random, kind: str, hops: int) -> tuple[str, ...]:
    """Relations that follow one another from an entity of this kind."""
    chain: list[str] = []
    for _ in range(hops):
        chain.append(rng.choice([word for word, relation in RELATIONS.items() if relation.subject == kind]))
        kind = RELATIONS[chain[-1]].target
    return tuple(chain)


def worded(rng: random.Random, start: str, chain: tuple[str, ...]) -> str:
    """A question for a chain, in one of its wordings."""
    nouns = [rng.choice(RELATIONS[relation].nouns) for relation in chain]
    if rng.random() < 0.5:
        phrase = "'s ".join([start, *nouns])
    else:
        phrase = " of ".join(f"the {noun}" for noun in reversed(nouns)) + f" of {start}"
    return rng.choice(HEADS).format(chain=phrase)


def draw_question(rng: random.Random, world: World, share: str) -> Question:
    """A question of two to four hops, by the shares of `HOP_WEIGHTS`; no entity comes twice in its chain."""
    hops = rng.choices(HOPS, HOP_WEIGHTS)[0]
    unanswerable = rng.random() < UNANSWERABLE_SHARE
    kinds = world.shares[share]
    while True:
        kind = rng.choice(list(kinds))
        start, chain = rng.choice(kinds[kind]), draw_chain(rng, kind, hops)
        reached = walk(world, start, chain)
        path = [start, *reached]
        if (reached[-1] is None) == unanswerable and len(set(path)) == len(path):
            return Question(worded(rng, start, chain), start, chain, reached[-1] or UNANSWERABLE)


def draw_questions(world: World, share: str, count: int, seed: int) -> list[Question]:
    """This many questions of a share; no chain of the same entity comes twice."""
    rng = random.Random(seed)
    drawn: dict[tuple[str, tuple[str, ...]], Question] = {}
    while len(drawn) < count:
        question = draw_question(rng, world, share)
        drawn.setdefault((question.start, question.chain), question)
    return list(drawn.values())

"""Templates of texts: groups texts that were sent at one place, and finds what the texts of a group have in common.

An agent may send several prompts at one place, for example if its framework gives its parts no names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from leyden.core.data.prompts.template import TextTemplate
from leyden.core.masking import mask_text
from leyden.core.trajectory.prompts.align import Tokens, letters, merged, template_of, tokens_of, words_pattern

SHARE = 0.5
"""Two texts belong together if they have this share of the letters of the shorter one in common."""
ANCHOR_LETTERS = 12
"""Two texts that each occur once also belong together if their beginning and end have so many letters in common."""
FEWEST_LETTERS = 8
"""Fewest letters of the fixed text of a template in a user's message, besides the variables."""
SURE_LENGTH = 8
"""Fewest characters of a value that imitates a prompt although only one other rollout has it in its fixed text."""


@dataclass(frozen=True, slots=True)
class SeenText:
    """One text as a call sent it."""

    text: str
    rollout_id: str
    values: tuple[str, ...] = ()
    """Parts of the text that are known to vary."""


@dataclass(slots=True)
class FoundTemplate:
    """A template with the texts that it is the whole of."""

    tokens: Tokens
    texts: list[SeenText] = field(default_factory=list[SeenText])

    @property
    def rollouts(self) -> set[str]:
        """Ids of the rollouts in which it was sent."""
        return {seen.rollout_id for seen in self.texts}

    @property
    def occurs_once(self) -> bool:
        """Whether all its texts are equal, and one rollout sent them."""
        return len(self.rollouts) == 1 and len({seen.text for seen in self.texts}) == 1

    @property
    def letters(self) -> int:
        """Number of letters of its fixed text."""
        return letters(self.tokens)

    def template(self) -> TextTemplate:
        """Return the template of all its texts."""
        return template_of(self.tokens, sorted({seen.text for seen in self.texts}))


def without_imitations(texts: Sequence[SeenText]) -> list[SeenText]:
    """Return texts that were sent at one place, without the values that do not vary there.

    All rollouts without such a value send it, too, in the fixed part of a text. A task that repeats the agent's prompt
    would otherwise make a variable of it.
    """
    fixed: dict[str, set[str]] = {}
    values: dict[str, set[str]] = {}
    for seen in texts:
        rest = words_pattern(seen.values).sub("\0", seen.text) if seen.values else seen.text
        fixed.setdefault(seen.rollout_id, set()).add(rest)
        values.setdefault(seen.rollout_id, set()).update(seen.values)

    @cache
    def varies(value: str) -> bool:
        others = [fixed[rollout_id] for rollout_id, own in values.items() if value not in own]
        if not others or (len(others) == 1 and len(value) < SURE_LENGTH):
            return True
        pattern = words_pattern([value])
        return not all(any(value in rest and pattern.search(rest) for rest in rests) for rests in others)

    return [replace(seen, values=tuple(filter(varies, seen.values))) for seen in texts]


def find_templates(texts: Sequence[SeenText]) -> list[FoundTemplate]:
    """Return the templates of texts that were sent at one place, in the order in which they were first sent."""
    found: list[FoundTemplate] = []
    known: dict[str, FoundTemplate] = {}
    rollouts: dict[str, set[str]] = {}
    for seen in texts:
        rollouts.setdefault(seen.text, set()).add(seen.rollout_id)
    for seen in texts:
        group = known.get(seen.text)
        if group is None:
            others = [one for one in found if not _are_apart(one, seen.text, rollouts)]
            group = known[seen.text] = _group_of(others, _tokens(seen))
            found += [] if group.texts else [group]
        group.texts.append(seen)
    return _with_anchored(found)


def _tokens(seen: SeenText) -> Tokens:
    """Return the tokens of a text, in which its secrets are variables, so that no file of templates has them."""
    tokens, masked = tokens_of(seen.text, seen.values), mask_text(seen.text)
    return tokens if masked == seen.text else merged(tokens, tokens_of(masked, seen.values))


def _are_apart(group: FoundTemplate, text: str, rollouts: Mapping[str, set[str]]) -> bool:
    """Return whether a text and one of a group are two prompts: each is sent unchanged for several tasks, also both."""
    own = rollouts[text]
    of_group = (rollouts[other] for other in {seen.text for seen in group.texts})
    return len(own) > 1 and any(len(other) > 1 and own & other for other in of_group)


def _group_of(found: Sequence[FoundTemplate], tokens: Tokens) -> FoundTemplate:
    """Return the group with the most in common, extended with a text; a new group if none has enough."""
    best: tuple[int, FoundTemplate, Tokens] | None = None
    own = letters(tokens)
    for group in found:
        both = merged(group.tokens, tokens)
        common = letters(both)
        if common >= SHARE * min(own, group.letters) and common and (best is None or common > best[0]):
            best = (common, group, both)
    if best is None:
        return FoundTemplate(tokens)
    best[1].tokens = best[2]
    return best[1]


def _with_anchored(found: Sequence[FoundTemplate]) -> list[FoundTemplate]:
    """Join groups of one text each that begin and end alike: each holds another long text, such as a document."""
    kept: list[FoundTemplate] = []
    for group in found:
        for other in kept if group.occurs_once else ():
            is_once = len({seen.text for seen in other.texts}) == len(other.texts)
            both = merged(other.tokens, group.tokens)
            if is_once and not other.rollouts & group.rollouts and letters(both) >= ANCHOR_LETTERS:
                other.tokens = both
                other.texts += group.texts
                break
        else:
            kept.append(group)
    return kept

import pytest

from leyden.core.data.similar_messages import LINE_CHARACTERS, CountedMessage, Tally, without_varying_words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no result within 1.9 s", "no result within 120 s"),
        ("KeyError: 'q17'", "KeyError: 'q2'"),
        ("<Agent object at 0x7f3b2c1d>", "<Agent object at 0x10ab>"),
        ("worker worker-a3f9c1-2 was lost", "worker worker-0b77e2-31 was lost"),
        ("rollout train-v0-b0-3-1 failed", "rollout train-v12-b8-0-7 failed"),
        ("no run 3fae5e2c-9d0b-4b7e-8a55-0c1f6a7d2e10", "no run 9f1b2c3d-0000-4b7e-8a55-111111111111"),
        ("status 500: request req_01ab", "status 500: request req_99zz"),
    ],
)
def test_messages_that_differ_in_ids_addresses_and_numbers_are_alike(one: str, other: str) -> None:
    assert without_varying_words(one) == without_varying_words(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: bad day", "TypeError: bad day"),
        ("Error code: 400 - refused", "Error code: 429 - refused"),
        ("HTTP/500", "HTTP/503"),
        ("no result within 2 s", "no reward within 2 s"),
    ],
)
def test_messages_that_say_something_else_are_not(one: str, other: str) -> None:
    assert without_varying_words(one) != without_varying_words(other)


def test_the_most_frequent_is_first_with_the_words_of_its_first_message() -> None:
    tally = Tally()
    tally.add("bad\n  day 1", "ro-1")
    for number in (7, 8, 9):
        tally.add(f"too slow: {number} s", f"ro-{number}")
    assert tally.most_common() == [CountedMessage(3, "too slow: 7 s", "ro-7"), CountedMessage(1, "bad day 1", "ro-1")]
    assert (tally.line(), tally.total) == ("3 × too slow: 7 s; 1 × bad day 1", 4)


def test_a_line_names_a_few_reasons_and_counts_the_others() -> None:
    tally = Tally()
    for number, reason in enumerate(["alpha", "beta", "gamma", "delta", "epsilon"]):
        tally.add(reason, count=5 - number)
    assert tally.line(most=3) == "5 × alpha; 4 × beta; 3 × gamma; and 3 for 2 other reasons"
    assert tally.line(most=4).endswith("and 1 for another reason")
    assert Tally().line() == ""


def test_a_long_message_is_whole_in_the_tally_and_cut_in_the_line() -> None:
    tally = Tally()
    tally.add("x" * 5000)
    assert len(tally.most_common()[0].text) == 5000
    assert len(tally.line()) == LINE_CHARACTERS + len("1 × ")


def test_tallies_are_added_up() -> None:
    one, other = Tally(), Tally()
    one.add("slow 1", "a")
    other.add("slow 2", "b", count=4)
    one.include(other.most_common())
    assert one.most_common() == [CountedMessage(5, "slow 1", "a")]


QUESTIONS = ["What is 2 plus 3?", "Subtract six from nine.", "A box has a lid.", "How many are left?"]


@pytest.mark.parametrize(
    "message", ["no luck with {{'question': {0!r}}}", "no luck with it: {0}", "cannot parse `{0}`", "{0!r}", "{0}"]
)
def test_messages_that_quote_their_task_are_one_reason_where_there_are_too_many(message: str) -> None:
    tally = Tally()
    tally.add("no result within 2 s", "slow")
    for number, question in enumerate(QUESTIONS):
        tally.add(f"LookupError: {message.format(question)}", f"ro-{number}", count=2)
    first = f"LookupError: {message.format(QUESTIONS[0])}"
    assert tally.grouped(3) == [
        CountedMessage(8, first, "ro-0", messages=4),
        CountedMessage(1, "no result within 2 s", "slow"),
    ]
    assert tally.line() == f"8 × {first} (4 messages that begin alike); 1 × no result within 2 s"
    assert len(tally.grouped(5)) == 5, "there is room for all of them"


def test_different_errors_are_never_one_reason() -> None:
    tally = Tally()
    for text in ("ValueError: bad day", "TypeError: bad day", "KeyError: 'a'", "Error code: 400 - 'x'", "no 'x'"):
        tally.add(text)
    assert len(tally.grouped(1)) == 5


def test_what_was_one_reason_stays_one_when_tallies_are_added_up() -> None:
    counted, other = Tally(), Tally()
    for question in QUESTIONS:
        counted.add(f"LookupError: {question!r}")
    other.include(counted.grouped(1))
    other.include(counted.grouped(1))
    assert other.most_common() == [CountedMessage(8, f"LookupError: {QUESTIONS[0]!r}", "", messages=4)]

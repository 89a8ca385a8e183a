"""Proofs of the run's token: what binds them, and how often a nonce is taken."""

import dataclasses

import pytest

from leyden.core.trainer.agents import run_proof
from leyden.core.trainer.agents.run_proof import NonceIssuer, ProofExchange, challenge, read_challenge, read_proof, same

TOKEN = "the-token-of-the-run"
EXCHANGE = ProofExchange("offer", "of-the-server", "of-the-client")


@pytest.mark.parametrize("changed", ["item", "server_nonce", "client_nonce"])
def test_proofs_are_of_one_exchange(changed: str) -> None:
    other = dataclasses.replace(EXCHANGE, **{changed: "another"})
    assert other.proof(TOKEN) != EXCHANGE.proof(TOKEN)
    assert other.answer_proof(TOKEN, b"body") != EXCHANGE.answer_proof(TOKEN, b"body")


def test_proofs_are_of_the_token_of_the_side_and_of_the_body() -> None:
    proofs = {
        EXCHANGE.proof(TOKEN),
        EXCHANGE.proof("another"),
        EXCHANGE.answer_proof(TOKEN, b""),
        EXCHANGE.answer_proof(TOKEN, b"body"),
        EXCHANGE.answer_proof("another", b"body"),
        ProofExchange("offer", "of-the-serverof", "-the-client").proof(TOKEN),
    }
    assert len(proofs) == 6
    assert same(EXCHANGE.proof(TOKEN), ProofExchange("offer", "of-the-server", "of-the-client").proof(TOKEN))


def test_each_exchange_has_a_nonce_of_its_client() -> None:
    assert ProofExchange("offer", "n").client_nonce != ProofExchange("offer", "n").client_nonce


def test_headers_hold_no_token_and_are_read_back() -> None:
    header = EXCHANGE.authorization(TOKEN)
    assert TOKEN not in header
    assert read_proof(header, "offer") == (EXCHANGE, EXCHANGE.proof(TOKEN))
    assert read_challenge(challenge("n")) == ("n", False)
    assert read_challenge(challenge("n", stale=True)) == ("n", True)


@pytest.mark.parametrize(
    "header", ["", "Bearer token", "Leyden-MAC", "Leyden-MAC a b", "Leyden-MAC a b c d", "Basic a b c"]
)
def test_other_headers_are_none_of_these(header: str) -> None:
    assert read_proof(header, "offer") is None


@pytest.mark.parametrize("header", ["", "Bearer", "Leyden-MAC", "Leyden-MAC a b c", "Basic realm"])
def test_other_challenges_are_none_of_these(header: str) -> None:
    assert read_challenge(header) is None


def test_a_nonce_is_taken_once() -> None:
    challenges = NonceIssuer()
    first, second = challenges.fresh(), challenges.fresh()
    assert [challenges.use(nonce) for nonce in (first, second, first, second)] == [True, True, False, False]


@pytest.mark.parametrize("nonce", ["", ".", "..", "a.b.c", NonceIssuer().fresh()])
def test_nonces_of_others_are_not_taken(nonce: str) -> None:
    assert not NonceIssuer().use(nonce)


def test_a_nonce_is_not_taken_for_ever_and_those_that_are_too_old_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    challenges = NonceIssuer()
    used, unused = challenges.fresh(), challenges.fresh()
    assert challenges.use(used)
    monkeypatch.setattr(run_proof, "NONCE_SECONDS", -1.0)
    assert not challenges.use(unused)
    assert not challenges.use(used)

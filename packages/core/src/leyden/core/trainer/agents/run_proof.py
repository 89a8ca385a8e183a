"""How a run and `leyden run` prove to each other that they have the run's token, without sending it.

A request without proof is answered by 401 with a nonce of the server. The same request with proof bears that nonce, one
of the client's, and an HMAC under the token of both and of what is asked; its answer bears an HMAC of the same and of
its body. A nonce is taken once. So whoever listens at the run's URL without the token learns nothing that opens the
run, and cannot answer for it, not even with an answer that was sent before. What is answered is not encrypted: TLS does
that. Knows nothing of HTTP clients and servers.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field

PROTOCOL = 2
"""In the first, the token itself was sent."""
SCHEME = "Leyden-MAC"
"""In the headers `WWW-Authenticate` and `Authorization`."""
PROOF = "x-leyden-proof"
"""Header of an answer: the server's proof."""
LONGEST_CHALLENGE = 1024
NONCE_SECONDS = 60.0
"""How long a nonce of the server is taken."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer: what is asked for, and the nonces of both sides."""

    asked: str
    server_nonce: str
    client_nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def authorization(self, token: str) -> str:
        """The client's proof, as a header."""
        return f"{SCHEME} {self.server_nonce} {self.client_nonce} {self.proof(token)}"

    def proof(self, token: str) -> str:
        """The client's proof that it has the token."""
        return _mac(token, b"request", *self._parts())

    def answer_proof(self, token: str, body: bytes) -> str:
        """The server's proof that it has the token and that this is its answer."""
        return _mac(token, b"answer", *self._parts(), body)

    def _parts(self) -> list[bytes]:
        return [one.encode() for one in (self.asked, self.server_nonce, self.client_nonce)]


class Challenges:
    """A server's nonces. Nothing is kept of one before it is used."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._used: OrderedDict[str, float] = OrderedDict()

    def fresh(self) -> str:
        """Return the next one."""
        made = f"{time.monotonic_ns():x}.{secrets.token_hex(16)}"
        return f"{made}.{self._sign(made)}"

    def use(self, nonce: str) -> bool:
        """Whether a nonce is one of these, not too old, and not used before; it is from now on."""
        now = time.monotonic()
        while self._used and next(iter(self._used.values())) < now - NONCE_SECONDS:
            self._used.popitem(last=False)
        made, _, signature = nonce.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(made).encode()):
            return False
        age = now - int(made.partition(".")[0], 16) / 1e9
        if age > NONCE_SECONDS or nonce in self._used:
            return False
        self._used[nonce] = now
        return True

    def _sign(self, made: str) -> str:
        return hmac.digest(self._secret, made.encode(), "sha256").hex()


def challenge(nonce: str, *, stale: bool = False) -> str:
    """The header `WWW-Authenticate` of a refusal; `stale`: the proof was right, and its nonce is not taken any more."""
    return f"{SCHEME} {nonce}{' stale' if stale else ''}"


def read_challenge(header: str) -> tuple[str, bool] | None:
    """The nonce in such a header, and whether it says stale; None for another header."""
    words = header.split()
    if len(words) not in (2, 3) or words[0] != SCHEME or not header.isascii() or len(header) > LONGEST_CHALLENGE:
        return None
    return words[1], words[2:] == ["stale"]


def read_proof(header: str, asked: str) -> tuple[Exchange, str] | None:
    """The exchange that the header `Authorization` is part of, and the proof in it; None for another header."""
    words = header.split(" ")
    if len(words) != 4 or words[0] != SCHEME or not header.isascii():
        return None
    return Exchange(asked, words[1], words[2]), words[3]


def same(one: str, other: str) -> bool:
    """Whether two proofs are the same, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape"))


def _mac(token: str, *parts: bytes) -> str:
    whole = b"".join(len(part).to_bytes(8, "big") + part for part in (b"leyden runners", *parts))
    return hmac.digest(token.encode(), whole, "sha256").hex()

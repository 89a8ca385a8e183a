"""Run proofs: a run and `leyden run` prove to each other that they have the run's token, without sending it.

1. The server answers a request without proof by 401, with a server nonce.
2. The client repeats the request with this nonce, a nonce of its own, and an HMAC. The HMAC uses the token as key and
   covers both nonces and the requested item.
3. The answer carries an HMAC over the same values and its body.

Each server nonce is accepted once. Another server that listens at the run's URL without the token therefore receives
nothing that gives access to the run. It also cannot answer for the run, not even by replaying an answer. Answers are
not encrypted; use TLS for that.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field

PROTOCOL = 2
"""Version of the runner protocol. Version 1 sent the token itself."""
SCHEME = "Leyden-MAC"
"""Authentication scheme in the headers `WWW-Authenticate` and `Authorization`."""
PROOF = "x-leyden-proof"
"""Response header with the server's proof."""
LONGEST_CHALLENGE = 1024
NONCE_SECONDS = 60.0
"""Time in seconds for which a server nonce is accepted."""


@dataclass(frozen=True, slots=True)
class ProofExchange:
    """One request and its answer: the requested item and the nonces of both sides."""

    item: str
    server_nonce: str
    client_nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def authorization(self, token: str) -> str:
        """Return the client's proof as the value of the header `Authorization`."""
        return f"{SCHEME} {self.server_nonce} {self.client_nonce} {self.proof(token)}"

    def proof(self, token: str) -> str:
        """Return the client's proof that it has the token."""
        return _mac(token, b"request", *self._parts())

    def answer_proof(self, token: str, body: bytes) -> str:
        """Return the server's proof that it has the token and that `body` is its answer."""
        return _mac(token, b"answer", *self._parts(), body)

    def _parts(self) -> list[bytes]:
        return [part.encode() for part in (self.item, self.server_nonce, self.client_nonce)]


class NonceIssuer:
    """Nonces of a server. They are signed, so that the server stores a nonce only once it is used."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._used: OrderedDict[str, float] = OrderedDict()

    def fresh(self) -> str:
        """Return a new nonce."""
        unsigned = f"{time.monotonic_ns():x}.{secrets.token_hex(16)}"
        return f"{unsigned}.{self._sign(unsigned)}"

    def use(self, nonce: str) -> bool:
        """Mark a nonce as used; return whether it was one of these, recent enough, and unused."""
        now = time.monotonic()
        while self._used and next(iter(self._used.values())) < now - NONCE_SECONDS:
            self._used.popitem(last=False)
        unsigned, _, signature = nonce.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(unsigned).encode()):
            return False
        age = now - int(unsigned.partition(".")[0], 16) / 1e9
        if age > NONCE_SECONDS or nonce in self._used:
            return False
        self._used[nonce] = now
        return True

    def _sign(self, unsigned: str) -> str:
        return hmac.digest(self._secret, unsigned.encode(), "sha256").hex()


def challenge(nonce: str, *, stale: bool = False) -> str:
    """Return the header `WWW-Authenticate` of a refusal. `stale`: the proof was valid, but its nonce has expired."""
    return f"{SCHEME} {nonce}{' stale' if stale else ''}"


def read_challenge(header: str) -> tuple[str, bool] | None:
    """Return the nonce in such a header and whether it is marked stale; None for another header."""
    words = header.split()
    if len(words) not in (2, 3) or words[0] != SCHEME or not header.isascii() or len(header) > LONGEST_CHALLENGE:
        return None
    return words[1], words[2:] == ["stale"]


def read_proof(header: str, item: str) -> tuple[ProofExchange, str] | None:
    """Return the exchange and the proof in the header `Authorization`; None for another header."""
    words = header.split(" ")
    if len(words) != 4 or words[0] != SCHEME or not header.isascii():
        return None
    return ProofExchange(item, words[1], words[2]), words[3]


def same(one: str, other: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape"))


def _mac(token: str, *parts: bytes) -> str:
    whole = b"".join(len(part).to_bytes(8, "big") + part for part in (b"leyden runners", *parts))
    return hmac.digest(token.encode(), whole, "sha256").hex()

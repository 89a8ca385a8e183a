import gzip
import json
import zlib

import pytest

from leyden.core.tracing.wire import request_body
from leyden.core.tracing.wire.request_body import is_model_request

NAMED, OTHER = json.dumps({"a": 1, "model": "big"}), json.dumps({"content": "models"})


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        (None, "", True),
        (b"", "", False),
        (NAMED.encode(), "", True),
        (OTHER.encode(), "", False),
        (b'{"mod\\u0065l": 1}', "", True),
        (NAMED.encode("utf-16"), "", True),
        (NAMED.encode("utf-32"), "", True),
        (b'{"prompt": {"id": "pmpt_1"}}', "", True),
        (b'{"prompt": {"id": "7"}}', "", False),
        (b'["model"]', "", True),  # as it always was
        (b"[1]", "", False),
        (b"not JSON", "", False),
        (b"[" * 100_000, "", False),
        (gzip.compress(NAMED.encode(), mtime=0), "gzip", True),
        (gzip.compress(OTHER.encode(), mtime=0), "gzip", False),
        (zlib.compress(OTHER.encode()), "deflate", False),
        (gzip.compress(NAMED[:12].encode(), mtime=0) + gzip.compress(NAMED[12:].encode(), mtime=0), "gzip", True),
        (gzip.compress(OTHER.encode(), mtime=0)[:-4], "gzip", True),
        (b"\x28\xb5\x2f\xfd", "zstd", True),
        (OTHER.encode(), "deflate", False),  # aiohttp compresses later
    ],
)
def test_whether_a_body_speaks_of_a_model(body: bytes | None, encoding: str, expected: bool) -> None:
    assert is_model_request(body, encoding) is expected


def test_what_is_too_long_to_be_read_is_taken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "LARGEST", 10)
    assert is_model_request(gzip.compress(OTHER.encode(), mtime=0), "gzip")

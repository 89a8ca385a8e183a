import pytest

from leyden.core.tracing.wire.request_path import normalized


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "/"),
        ("/", "/"),
        ("/v1/models/", "/v1/models"),
        ("//v1///models", "/v1/models"),
        ("/v1/./models/x/..", "/v1/models"),
        ("/../../v1/models", "/v1/models"),
        ("/v1/%6dodels", "/v1/models"),
        ("/v1/%256dodels", "/v1/models"),
        ("/v1%2fmodels", "/v1/models"),
        ("/v1/x/%2e%2e/models", "/v1/models"),
        ("/v1\\models", "/v1/models"),
        ("/v1;a=1/models;b", "/v1/models"),
        ("/v1/models%00", "/v1/models"),
        ("/v1/models%20", "/v1/models"),
        ("/v1/Models/Ft:A", "/v1/Models/Ft:A"),
        ("/v1/100%25", "/v1/100%"),
    ],
)
def test_a_path_has_one_form(path: str, expected: str) -> None:
    assert normalized(path) == expected
    assert normalized(expected) == expected

import pytest

from leyden.core.tracing.wire.not_model_calls import is_allowed


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/Embeddings/"),
        ("POST", "/any/prefix/v3/embeddings"),
        ("GET", "/v1/models/meta-llama/Llama-3"),
        ("POST", "/v1/chat/moderations"),
        ("GET", "/api/v1/generation"),
        ("GET", "/"),
    ],
)
def test_what_is_no_model_call(method: str, path: str) -> None:
    assert is_allowed({method}, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("POST", "/v1/models/some-model"),  # Hugging Face's
        ("POST", "/v1/generation"),
        ("POST", "/v1/completions/files"),
        ("POST", "/v1/unknown"),
        ("POST", "/v1/embeddings/x"),
        ("POST", "/v1/chat%3F/embeddings"),
        ("POST", "/vision/v1/chat/completions/x"),
        ("BREW", "/v1/embeddings"),
    ],
)
def test_everything_else_is_one(method: str, path: str) -> None:
    assert not is_allowed({method}, path)


def test_every_method_that_a_server_may_take_it_for_must_be_allowed() -> None:
    assert is_allowed({"GET", "DELETE"}, "/v1/models/m")
    assert not is_allowed({"GET", "POST"}, "/v1/models/m")

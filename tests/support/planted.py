"""Secrets to plant: each of a shape of its own, with a part that nothing else holds."""

import base64
import hashlib
import json
import sqlite3
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LETTERS = string.ascii_letters + string.digits


def random_of(name: str, size: int = 36) -> str:
    """Letters and digits that follow from a name, with a digit among the first ones."""
    digest = hashlib.sha512(name.encode()).digest()
    return "a1B2" + "".join(LETTERS[byte % len(LETTERS)] for byte in digest[: size - 4])


def _jwt(name: str) -> tuple[str, str]:
    signature = random_of(name)
    return f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{signature}", signature


def _basic(name: str) -> tuple[str, str]:
    word = base64.b64encode(f"me:{random_of(name)}".encode()).decode()
    return f"Basic {word}", word[:24]


def _block(name: str) -> tuple[str, str]:
    body = [random_of(f"{name}{line}", 64) for line in range(6)]
    text = "\n".join(["-----BEGIN PRIVATE KEY-----", *body, "-----END PRIVATE KEY-----"])
    return text, body[3]


SHAPES = {
    "OpenAI": "sk-proj-{}",
    "OpenAI, old": "sk-{}",
    "Anthropic": "sk-ant-api03-{}",
    "Stripe": "sk_live_{}",
    "Groq": "gsk_{}",
    "xAI": "xai-{}",
    "NVIDIA": "nvapi-{}",
    "Hugging Face": "hf_{}",
    "GitHub": "ghp_{}",
    "GitHub, fine-grained": "github_pat_{}",
    "GitLab": "glpat-{}",
    "Slack": "xoxb-123456789012-{}",
    "Google": "AIza{}",
    "Google, OAuth": "ya29.{}",
    "Azure, account": "DefaultEndpointsProtocol=https;AccountKey={};EndpointSuffix=core.windows.net",
    "Azure, header": "api-key: {}",
    "bearer": "Authorization: Bearer {}",
    "header": "x-goog-api-key: {}",
    "cookie": "Cookie: session={}",
    "user and password": "postgresql://me:{}@db.example/things",
    "token as user": "https://{}@git.example/me/it.git",
    "token in a path": "https://hooks.example/tokens/{}/send",
    "query key": "https://api.example/v1?api_key={}&page=2",
    "signature": "https://blob.example/c/b?sv=1&sig={}",
    "assigned": "client_secret = '{}'",
    "in JSON": '{{"access_token": "{}", "expires": 3}}',
    "in a dict": "{{'password': '{}'}}",
}
"""How each is written; the braces stand for the part that nothing else holds."""
MADE = {"JSON Web Token": _jwt, "basic": _basic, "private key": _block}


def shaped() -> dict[str, tuple[str, str]]:
    """What a masker has to know by its shape: the text by its name, and the part of it that is looked for."""
    found = {name: (text.format(random_of(name)), random_of(name)) for name, text in SHAPES.items()}
    found |= {name: make(name) for name, make in MADE.items()}
    access = "AKIA" + hashlib.sha256(b"AWS").hexdigest().upper()[:16]
    return {**found, "AWS": (access, access[4:])}


def found_in(texts: Mapping[str, bytes], secrets: Mapping[str, str]) -> list[str]:
    """Lines that say which secret is where."""
    return [
        f"{name} is in {place}: ...{data[max(0, at - 60) : at + 12]!r}"
        for name, secret in secrets.items()
        for place, data in texts.items()
        if (at := data.find(secret.encode())) >= 0
    ]


def texts_below(folders: Iterable[Path]) -> dict[str, bytes]:
    """The content of all files below the folders, their names, and the rows of databases."""
    found: dict[str, bytes] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            found[f"the name {path}"] = str(path.relative_to(folder)).encode()
            if path.is_file() and not path.is_symlink():
                data = found[str(path)] = path.read_bytes()
                if data.startswith(b"SQLite format 3"):
                    found |= _rows(path)
    return found


def _rows(path: Path) -> dict[str, bytes]:
    connection = sqlite3.connect(path)
    try:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {f"{path}, table {table}": _text(connection.execute(f'select * from "{table}"')) for table in tables}
    finally:
        connection.close()


def _text(rows: Iterable[tuple[Any, ...]]) -> bytes:
    return json.dumps([[_plain(value) for value in row] for row in rows]).encode()


def _plain(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value

"""Who may read the console, and what its pages may load."""

from pathlib import Path

import httpx
import pytest

from leyden.console.server import application
from leyden.core.trainer.run_folder.folder import RunFolder


def client(folder: RunFolder, host: str = "127.0.0.1", **more: object) -> httpx.AsyncClient:
    app = application([folder.path.parent], host=host, **more)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8600")


async def test_a_page_of_another_host_name_gets_nothing(folder: RunFolder) -> None:
    async with client(folder) as http:
        assert (await http.get("/api/runs")).status_code == 200
        assert (await http.get("/api/runs", headers={"host": "localhost:8600"})).status_code == 200
        refused = await http.get("/api/runs", headers={"host": "attacker.example"})

    assert refused.status_code == 421
    assert "small" not in refused.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(folder: RunFolder, method: str) -> None:
    async with client(folder) as http:
        for path in ("/api/runs", "/api/runs/small", "/"):
            assert (await http.request(method, path)).status_code == 405


async def test_every_answer_forbids_scripts_of_others(folder: RunFolder) -> None:
    async with client(folder) as http:
        for path in ("/", "/api/runs", "/api/nothing", "/app.js"):
            headers = (await http.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers


async def test_a_token_opens_the_console_and_leaves_the_address(folder: RunFolder) -> None:
    async with client(folder, "0.0.0.0", token="secret-of-the-console") as http:
        assert (await http.get("/api/runs")).status_code == 403
        assert (await http.get("/?token=another")).status_code == 403
        assert (await http.get("/api/runs", headers={"cookie": "leyden_console=another"})).status_code == 403
        opened = await http.get("/?token=secret-of-the-console&x=1")
        assert (opened.status_code, opened.headers["location"]) == (303, "/?x=1")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await http.get("/api/runs")).status_code == 200


async def test_a_damaged_cookie_is_no_token(folder: RunFolder) -> None:
    async with client(folder, token="secret") as http:
        assert (await http.get("/api/runs", headers={"cookie": 'a="; leyden_console'})).status_code == 403


async def test_no_file_outside_of_the_pages_is_served(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    async with client(folder) as http:
        for path in (
            "/../conftest.py",
            "/%2e%2e/server.py",
            "//etc/passwd",
            "/..%2f..%2fserver.py",
            "/static/../server.py",
        ):
            answer = await http.get(path)
            assert answer.status_code in (400, 404), path

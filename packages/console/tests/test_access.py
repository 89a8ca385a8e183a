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
        assert (await http.get("/api/runs", headers={"cookie": "leyden_console_8600=another"})).status_code == 403
        opened = await http.get("/?token=secret-of-the-console&x=1")
        assert (opened.status_code, opened.headers["location"]) == (303, "/?x=1")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await http.get("/api/runs")).status_code == 200


async def test_a_damaged_cookie_is_no_token(folder: RunFolder) -> None:
    async with client(folder, token="secret") as http:
        assert (await http.get("/api/runs", headers={"cookie": 'a="; leyden_console_8600'})).status_code == 403


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


@pytest.fixture
def acting(folder: RunFolder) -> httpx.AsyncClient:
    """A client of a console with actions, whose cookie holds the right token."""
    http = client(folder, token="secret", allow_actions=True)
    http.headers["cookie"] = "leyden_console_8600=secret"
    return http


def test_actions_need_a_token(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="needs a token"):
        application([folder.path.parent], allow_actions=True)


async def test_a_page_of_the_console_may_request_a_change(acting: httpx.AsyncClient) -> None:
    own = {"origin": "http://127.0.0.1:8600", "sec-fetch-site": "same-origin"}
    async with acting as http:
        assert (await http.get("/api/console")).json()["actions"] is True
        answer = await http.post("/api/jobs/7/stop", json={}, headers=own)

    assert (answer.status_code, answer.json()) == (404, {"error": "there is no job '7'"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"host": "attacker.example"}, 421),
        ({"cookie": ""}, 403),
    ],
)
async def test_another_page_can_request_no_change(
    acting: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    async with acting as http:
        answer = await http.post(
            "/api/jobs/7/stop", content="{}", headers={"content-type": "application/json", **headers}
        )

    assert answer.status_code == status


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_with_actions_other_methods_stay_refused(acting: httpx.AsyncClient, method: str) -> None:
    async with acting as http:
        assert (await http.request(method, "/api/jobs")).status_code == 405
        assert (await http.post("/", json={})).status_code == 405

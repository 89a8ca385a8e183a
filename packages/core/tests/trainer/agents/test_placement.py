from typing import Any

import pytest

from leyden.core.errors import UsageError
from leyden.core.trainer.agents.placement import RunnerPlacement, own_address

LISTENING = "http://127.0.0.1:8765"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, LISTENING),
        ({"advertise": "box.lan"}, "http://box.lan:8765"),
        ({"advertise": "box.lan:80"}, "http://box.lan:80"),
        ({"advertise": "[fd00::1]"}, "http://[fd00::1]:8765"),
        ({"advertise": "https://box.lan/"}, "https://box.lan"),
        ({"host": "0.0.0.0", "advertise": "box.lan"}, "http://box.lan:8765"),
    ],
)
def test_a_run_is_known_by_what_it_advertises(given: dict[str, Any], url: str) -> None:
    assert RunnerPlacement(**given).url(LISTENING) == url


def test_what_listens_on_every_address_is_known_by_one_of_them() -> None:
    url = RunnerPlacement(host="0.0.0.0").url("http://0.0.0.0:8765")
    assert url == f"http://{own_address()}:8765"
    assert "0.0.0.0" not in url


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"where": "kubernetes"}, "--runners must be local, ray or remote, not 'kubernetes'"),
        ({"ray_address": "auto"}, "ray-address has no effect without runners ray"),
        ({"where": "remote", "ray_actors": 2}, "ray-actors has no effect without runners ray"),
        ({"where": "ray", "ray_actors": 0}, "ray-actors must be at least 1"),
        ({"where": "ray", "ray_cpus": -1.0}, "ray-cpus must not be negative"),
        ({"where": "ray", "ray_address": "ray://box:10001"}, "ray-address must be HOST:PORT or auto"),
        ({"advertise": "ftp://box"}, "advertise must be HOST, HOST:PORT or"),
        ({"advertise": "box:port"}, "advertise must be HOST, HOST:PORT or"),
        ({"advertise": "box/path"}, "advertise must be HOST, HOST:PORT or"),
        ({"advertise": ""}, "advertise must be HOST, HOST:PORT or"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        RunnerPlacement(**given)

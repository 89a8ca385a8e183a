"""A pytest plugin: one of xdist's processes runs all files of a folder whose library takes long to begin.

With `--dist loadfile` the files of a folder go to all processes, and each would load CrewAI's database, for seconds.
"""

from typing import Any

import pytest

FOLDERS = ("packages/crewai-adapter/",)


def pytest_configure(config: pytest.Config) -> None:
    """Take the place of `loadfile`, where that is wanted."""
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(SameProcess(), "files of one process")


class SameProcess:
    """Makes xdist's scheduler."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Return one that goes by files, but for `FOLDERS`."""
        if config.option.dist != "loadfile":
            return None
        from xdist.scheduler import LoadFileScheduling

        class ByFolder(LoadFileScheduling):
            def _split_scope(self, nodeid: str) -> str:  # what xdist's documentation has one override
                return next((folder for folder in FOLDERS if nodeid.startswith(folder)), super()._split_scope(nodeid))

        return ByFolder(config, log)

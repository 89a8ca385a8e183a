"""How the tables of a SQL store became what they are: Alembic's migrations, one for each `schema.VERSION`.

A migration's revision is the version that it leads to. Loads Alembic only where there is something to do.
"""

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect

TABLE = "leyden_version"
"""Where Alembic keeps the version; a table of its own name, as the database may be somebody else's."""

_UPGRADING = threading.Lock()
"""Alembic has one context for the whole process, so only one thread may use it at a time."""


def version(connection: Connection) -> int:
    """Return the version of the tables; 0 where there are none of ours."""
    if not inspect(connection).has_table(TABLE):
        return 0
    found = connection.exec_driver_sql(f"SELECT version_num FROM {TABLE}").scalar()
    return 0 if found is None else int(found)


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the tables up to a version, by default the newest, within the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _UPGRADING:
        command.upgrade(config, to)

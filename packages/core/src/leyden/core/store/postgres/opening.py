"""Opening of a PostgreSQL database as a store: checks its URI, its server and its version."""

import logging
import time
from typing import Any

import psycopg
from sqlalchemy import URL, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from leyden.core.errors import UsageError
from leyden.core.store.postgres.database import Database, first_line
from leyden.core.store.sql import migrations, schema
from leyden.core.store.text import check_login

logger = logging.getLogger(__name__)

_STARTING_SECONDS = 10.0
"""Seconds of waiting for a server that is starting up."""
_MIGRATING = 7_301_955_168_410_246_313
"""Key of the advisory lock for creating or changing the tables; an arbitrary number."""
_FORM = "postgresql://HOST:PORT/DATABASE, with USER:PASSWORD@ before the host"


def parsed(uri: str) -> URL:
    """Return the parsed URI; raises UsageError, whose message never contains a password."""
    check_login(uri)
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"the store's URI cannot be read; it has the form {_FORM}") from error
    if not url.database:
        raise UsageError(f"{shown(url)} names no database; it has the form {_FORM}")
    return url


def shown(url: URL) -> str:
    """Return the URI for messages, without password and options."""
    return url.set(query={}).render_as_string(hide_password=True)


def prepare(database: Database) -> bool:
    """Create or change the tables if necessary; return whether the server runs with fsync. Raises UsageError."""
    try:
        _await_server(database)
        with database.engine.connect() as connection:
            durable = connection.exec_driver_sql("SHOW fsync").scalar_one() == "on"
        _migrate(database)
    except (SQLAlchemyError, psycopg.Error) as error:
        database.close()
        raise UsageError(f"cannot open the store {database.name}: {_advised(error, database)}") from error
    except UsageError:
        database.close()
        raise
    if not durable:
        logger.warning("%s runs with fsync=off: a power cut may lose what was stored", database.name)
    return durable


def _await_server(database: Database) -> None:
    give_up = time.monotonic() + _STARTING_SECONDS
    while True:
        try:
            database.connect().close()
            return
        except psycopg.OperationalError as error:
            if "starting up" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def _migrate(database: Database) -> None:
    if _version(database) == schema.VERSION:
        return
    own = database.engine.execution_options(isolation_level="READ COMMITTED")
    with own.connect() as connection, connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATING})
        version = migrations.version(connection)
        if version > schema.VERSION:
            raise UsageError(
                f"the store {database.name} was written by a newer version of Leyden; update Leyden to open it"
            )
        if version == 0 and inspect(connection).get_table_names():
            raise UsageError(f"{database.name} is a database, but not a store of Leyden; use one that is empty")
        if version < schema.VERSION:
            migrations.upgrade(connection)


def _version(database: Database) -> int:
    with database.engine.connect() as connection:
        return migrations.version(connection)


_ADVICE = {
    "password authentication failed": "the user or the password is wrong",
    "no password supplied": "the server needs a password",
    "Connection refused": "no server listens there; is it running, and are host and port right?",
    "No such file or directory": "no server listens there; is it running, and are host and port right?",
    "failed to resolve host": "there is no such host",
    "could not translate host name": "there is no such host",
    "timeout": "no server answers; are host and port right?",
    "permission denied": "the user may not create tables there; make it the owner of the database",
    "too many clients": "the server has no free connection; raise its max_connections",
}


def _advised(error: Exception, database: Database) -> Any:
    first = first_line(error)
    whole = str(getattr(error, "orig", None) or error)
    for part, advice in _ADVICE.items():
        if part in whole:
            return f"{advice} ({first})"
    if "does not exist" in whole and "database" in whole:
        name = database.engine.url.database
        return f"there is no database {name}; create it, for instance with `createdb {name}` ({first})"
    return first

"""Tables of the records of runs, one for each kind of row, and the statements on them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, Update, and_, bindparam, delete, select, update

from leyden.core.store.common.run_record_rows import BY_STEP, RecordRow, RunRow, StepRow, VersionRow
from leyden.core.store.sql import schema
from leyden.core.store.sql.dialects import listed
from leyden.core.store.sql.statements import KEY_NAMES

TABLES: Mapping[type[RecordRow], Table] = {
    RunRow: schema.runs,
    StepRow: schema.step_metrics,
    VersionRow: schema.policy_versions,
}


def _has_key(kind: type[RecordRow]) -> ColumnElement[bool]:
    """Return a condition whose parameters are the first of `KEY_NAMES`."""
    return and_(*(TABLES[kind].c[name] == bindparam(key) for name, key in zip(kind.KEY, KEY_NAMES, strict=False)))


def _by_key(kind: type[RecordRow]) -> tuple[Select[Any], Select[Any]]:
    table, columns = TABLES[kind], COLUMNS[kind]
    keys = listed(*(table.c[name] for name in kind.KEY))
    wanted = and_(*(table.c[name] == keys.c[name] for name in kind.KEY))
    return select(*columns).where(_has_key(kind)), select(*columns).join_from(keys, table, wanted)


COLUMNS = {kind: [table.c[name] for name in kind.__struct_fields__] for kind, table in TABLES.items()}
BY_KEY = {kind: _by_key(kind) for kind in TABLES}
"""By kind: the statement for one key, and the one for several."""
REPLACE: Mapping[type[RecordRow], Update] = {
    kind: update(table)
    .where(_has_key(kind))
    .values({name: bindparam(f"new_{name}") for name in kind.__struct_fields__})
    for kind, table in TABLES.items()
}
FORGET = [
    delete(TABLES[kind]).where(
        TABLES[kind].c.run_id == bindparam("key"), TABLES[kind].c[kind.KEY[-1]] > bindparam("last", type_=schema.Big)
    )
    for kind in BY_STEP
]

"""Readers of arrays, tables and scalars of libraries: numpy, pandas, torch, OpenTelemetry's SDK.

No library is imported here: an object of a library can only exist where the library is loaded.
"""

import math
import sys
from typing import Any

from leyden.core.data.plain.class_members import class_of
from leyden.core.data.plain.own_methods import type_name
from leyden.core.data.plain.reading import Kind, Reading


def library_kind(base: type) -> Kind | None:
    """Return the reader of a library's class, or None; a class that only has the same name does not count."""
    for module, reads in _LIBRARIES.items():
        loaded = sys.modules.get(module)
        for name, read in reads.items() if loaded is not None else ():
            if vars(loaded).get(name) is base:
                return read
    return None


def _numpy_scalar(reading: Reading, value: Any, path: str) -> Any:
    numpy: Any = sys.modules["numpy"]
    item = numpy.generic.item(value)
    if issubclass(class_of(item), numpy.generic):  # for example a float of more than 64 bits
        return reading.own_text(value, lambda: repr(value), path)
    return reading.read(item, path)


def _numpy_array(reading: Reading, value: Any, path: str) -> Any:
    numpy: Any = sys.modules["numpy"]
    return _numbers(reading, numpy.ndarray.view(value, numpy.ndarray), value, path)


def _tensor(reading: Reading, value: Any, path: str) -> Any:
    torch: Any = sys.modules["torch"]
    if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        return reading.own_text(value, lambda: repr(value), path)
    return _numbers(reading, value.detach(), value, path)


def _numbers(reading: Reading, plain: Any, holder: Any, path: str) -> Any:
    """Read an array by its `tolist`; for an array that is too large, only the first numbers as one flat list."""
    count, most = math.prod(map(int, plain.shape)), 4 * reading.items_left
    if count <= most:
        return reading.read(plain.tolist(), path)
    members = _first_numbers(plain, most)
    kept = reading.flat(members)
    if kept is None:  # its members are no numbers, or have too many bytes
        return reading.items(members, count, holder, path)
    reading.reduce(path, f"the first {most} of {count} numbers of an array of shape {tuple(plain.shape)} are kept")
    return kept


def _first_numbers(array: Any, most: int) -> list[Any]:
    """Return the first members of an array of more than `most`, without copying all of it."""
    while len(array.shape) > 1:
        rows = most // math.prod(map(int, array.shape[1:]))
        if rows:
            array = array[: rows + 1]
            break
        array = array[0]
    return array.reshape(-1)[:most].tolist()


def _frame(reading: Reading, value: Any, path: str) -> Any:
    """Read a pandas table as its column names and its rows."""
    pandas: Any = sys.modules["pandas"]
    if type(value) is not pandas.DataFrame:
        return reading.own_text(value, lambda: repr(value), path)
    rows, columns = value.shape
    most = reading.items_left // (2 * columns + 2)
    if rows > most:
        reading.reduce(path, f"the first {most} of {rows} rows of a table are kept")
    data = [list(row) for row in value.head(most).itertuples(index=False, name=None)]
    return reading.pairs([("columns", list(value.columns)), ("data", data)], 2, value, path)


def _series(reading: Reading, value: Any, path: str) -> Any:
    """Read a column or an index of pandas."""
    if not type_name(value).startswith("pandas."):
        return reading.own_text(value, lambda: repr(value), path)
    return reading.items(value[: reading.items_left].tolist(), len(value), value, path)


def _nothing(reading: Reading, value: Any, path: str) -> Any:
    """Read a missing value of pandas as None."""
    return None


def _bounded_attributes(reading: Reading, value: Any, path: str) -> Any:
    """Read the attributes type of OpenTelemetry's SDK."""
    return reading.pairs(reading.first(value.items()), len(value), value, path)


_LIBRARIES: dict[str, dict[str, Kind]] = {
    "numpy": {"generic": _numpy_scalar, "ndarray": _numpy_array},
    "torch": {"Tensor": _tensor},
    "pandas": {"DataFrame": _frame, "Series": _series, "Index": _series},
    "pandas._libs.tslibs.nattype": {"NaTType": _nothing},
    "pandas._libs.missing": {"NAType": _nothing},
    "opentelemetry.attributes": {"BoundedAttributes": _bounded_attributes},
}
"""Readers by module and class name."""

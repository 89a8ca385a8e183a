"""Static analysis of a function: the names that it uses and writes to, from bytecode and source, without running it."""

import ast
import dis
import linecache
import site
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from leyden.core.runner.adapters.registry import installed_adapters
from leyden.core.runner.user_code.loading import agent_packages

_READING_METHODS = frozenset({"count", "index", "keys"})
_ITEM_METHODS = frozenset({"copy", "intersection", "items", "union", "values"})
"""Methods whose result contains the container's own items."""
_READING_CALLS = frozenset(
    {
        *("all", "any", "bool", "float", "format", "int", "isinstance", "len", "print", "range", "repr", "str", "sum"),
        *("json.dumps", "copy.deepcopy"),
    }
)
_ITERATING_CALLS = frozenset(
    {
        *("enumerate", "filter", "frozenset", "list", "map", "max", "min", "reversed", "set", "sorted", "tuple", "zip"),
        "random.sample",
    }
)
_ITEM_CALLS = frozenset({"dict", "copy.copy", "random.choice", "random.choices"})
_ASSIGNS_OUTSIDE = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_ASSIGNS_CELL = frozenset({"STORE_DEREF", "DELETE_DEREF"})
_METHODS_OF_CLASSES = frozenset({"__new__", "__init_subclass__", "__class_getitem__"})
"""Methods whose first argument is a class although they have no `classmethod` decorator."""
_READ = sys.maxsize
"""Escape depth of a use that lets no part of a container escape."""
_FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class FunctionNames:
    """Names that one function, with the functions inside it, uses and writes to."""

    global_names: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    """All attributes that it reads or writes, of any object."""
    imports: frozenset[str] = frozenset()
    """Modules that it imports when it runs."""
    calls: frozenset[str] = frozenset()
    """Dotted names that it calls, such as `os.environ.get`."""
    assigned: frozenset[str] = frozenset()
    """Names of the module or of an enclosing function that it assigns."""
    written: frozenset[str] = frozenset()
    """Names whose attributes or items it assigns: `a` for `a.b = 1` and for `a[0].b += 1`."""
    changed_attributes: frozenset[str] = frozenset()
    """Attributes that it assigns, of any object: `b` for `x.a.b = 1`.

    For a method, attributes of its own object are left out.
    """
    writes_class: bool = False
    """Whether it assigns attributes of a class through `cls`, `type(...)` or `__class__`."""
    escape_depth: Mapping[str, int] = field(default_factory=dict[str, int])
    """By outside name: the smallest depth at which a part of the value escapes from the function.

    Only uses other than reading count. 0: the value itself, such as an argument of a call. 1: its items, as in `return
    a[0]`. 2: items of items.
    """
    iterated: frozenset[str] = frozenset()
    """Outside names that it iterates over. A dict yields its keys, any other container its items."""
    has_source: bool = True


def read_code(function: FunctionType) -> FunctionNames:
    """Analyse `function`. Without its source, its writes are unknown."""
    code = function.__code__
    named = _Names()
    for inner in _all_code(code):
        named.read(inner, is_outermost=inner is code)
    nodes = _nodes(code)
    outer_names = named.global_names | set(code.co_freevars)
    holder = function.__qualname__.rpartition(".")[0]
    writes = _Writes(
        outer_names, first=code.co_varnames[:1], is_method=bool(holder) and not holder.endswith("<locals>")
    )
    for node in nodes:
        writes.read(node)
    return FunctionNames(
        global_names=frozenset(named.global_names),
        attributes=frozenset(named.attributes),
        imports=frozenset(named.imports),
        assigned=frozenset(named.assigned),
        calls=frozenset(writes.calls),
        written=frozenset(writes.written),
        changed_attributes=frozenset(writes.changed_attributes),
        writes_class=writes.writes_class,
        escape_depth=writes.escape_depth,
        iterated=frozenset(writes.iterated),
        has_source=bool(nodes),
    )


def is_library(path: str) -> bool:
    """Return whether a source file belongs to Python, to an installed package or to no file, and not to the user."""
    if path.startswith("<frozen"):
        return True
    inside = any(path.startswith(folder) for folder in _library_folders())
    return inside and not any(
        path.startswith(location) for package in agent_packages for location in _locations(package)
    )


def libraries_loaded_since(known: Collection[str]) -> list[str]:
    """Return modules of installed packages that are not in `known`, in load order."""
    found: list[str] = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name not in known and isinstance(path, str) and is_library(path):
            found.append(name)
    return found


@cache
def _locations(package: str) -> tuple[str, ...]:
    """Return the folders or the file of a package that agents come from. Empty for Leyden and the frameworks."""
    frameworks = {"leyden", *(adapter.module for adapter in installed_adapters())}
    if package in frameworks:
        return ()
    module = sys.modules.get(package)
    folders = [f"{folder}/" for folder in getattr(module, "__path__", ())]
    return (*folders,) if folders else (str(getattr(module, "__file__", None)),)


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    own_root = __file__.rpartition("/leyden/core/")[0]
    return tuple(f"{folder}/" for folder in (*folders, f"{own_root}/leyden"))


class _Names:
    def __init__(self) -> None:
        self.global_names = set[str]()
        self.attributes = set[str]()
        self.imports = set[str]()
        self.assigned = set[str]()

    def read(self, code: CodeType, *, is_outermost: bool) -> None:
        """Record the names of one code object. Free variables of the outermost code object are outside names."""
        for instruction in dis.get_instructions(code):
            what, name = instruction.opname, instruction.argval
            if what in ("LOAD_GLOBAL", "LOAD_NAME"):
                self.global_names.add(name)
            elif what in _ASSIGNS_OUTSIDE or (what in _ASSIGNS_CELL and is_outermost and name in code.co_freevars):
                self.assigned.add(name)
            elif what == "IMPORT_NAME":
                self.imports.add(name)
            elif instruction.opcode in dis.hasname:
                self.attributes.add(name)


def _all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_code(constant)


class _Writes:
    """Collects what a function's syntax tree assigns, and how it uses outside names."""

    def __init__(self, outer_names: set[str], first: tuple[str, ...], *, is_method: bool) -> None:
        self._outer_names, self._first, self._is_method = outer_names, first, is_method
        self.written = set[str]()
        self.changed_attributes = set[str]()
        self.calls = set[str]()
        self.escape_depth: dict[str, int] = {}
        self.iterated = set[str]()
        self.writes_class = False
        self._parents: dict[ast.AST, ast.AST] = {}

    def read(self, node: _FunctionNode) -> None:
        body = node.body if isinstance(node.body, list) else [node.body]
        for statement in body:
            self._parents |= {child: parent for parent in ast.walk(statement) for child in ast.iter_child_nodes(parent)}
        decorators = getattr(node, "decorator_list", [])
        is_class_method = any(isinstance(one, ast.Name) and one.id == "classmethod" for one in decorators)
        is_class_method |= getattr(node, "name", None) in _METHODS_OF_CLASSES
        for statement in body:
            for inner in ast.walk(statement):
                self._record(inner, is_class_method)

    def _record(self, node: ast.AST, is_class_method: bool) -> None:
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            self._record_write(node, is_class_method)
        elif isinstance(node, ast.Call) and (called := _dotted(node.func)):
            self.calls.add(called)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in self._outer_names:
            depth = self._depth(node)
            if self._is_iterated(node):
                self.iterated.add(node.id)
            elif depth < _READ:
                self.escape_depth[node.id] = min(depth, self.escape_depth.get(node.id, _READ))

    def _record_write(self, target: ast.Attribute | ast.Subscript, is_class_method: bool) -> None:
        if isinstance(target, ast.Attribute) and not self._is_of_own_object(target):
            self.changed_attributes.add(target.attr)
        root: ast.AST = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            if isinstance(root, ast.Attribute) and root.attr == "__class__":
                self.writes_class = True
            root = root.value
        if isinstance(root, ast.Name):
            self.written.add(root.id)
            self.writes_class |= is_class_method and root.id in self._first
        elif isinstance(root, ast.Call) and _dotted(root.func) == "type":
            self.writes_class = True

    def _is_of_own_object(self, attribute: ast.Attribute) -> bool:
        holder = attribute.value
        return self._is_method and isinstance(holder, ast.Name) and holder.id in self._first

    def _is_iterated(self, node: ast.expr) -> bool:
        parent = self._parents.get(node)
        if isinstance(parent, ast.Call):
            return node in parent.args and _dotted(parent.func) in _ITERATING_CALLS
        return isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension) and parent.iter is node

    def _depth(self, node: ast.expr) -> int:
        """Return the smallest depth at which the value of `node` escapes by its use here."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Subscript) and parent.value is node:
            return self._depth_of_item(parent) if isinstance(parent.ctx, ast.Load) else 0
        if isinstance(parent, ast.Attribute):
            return self._depth_by_method(parent)
        if isinstance(parent, ast.Call):
            called = _dotted(parent.func) if node in parent.args else None
            return _READ if called in _READING_CALLS else int(called in _ITEM_CALLS | _ITERATING_CALLS)
        if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
            return int(parent.iter is node)
        if isinstance(parent, ast.Starred | ast.BinOp | ast.keyword):
            return int(getattr(parent, "arg", None) is None)
        reads = ast.Compare | ast.FormattedValue | ast.UnaryOp | ast.If | ast.While | ast.Assert
        return _READ if isinstance(parent, reads) else 0

    def _depth_by_method(self, attribute: ast.Attribute) -> int:
        call = self._parents.get(attribute)
        if not (isinstance(call, ast.Call) and call.func is attribute):
            return 0
        if attribute.attr in _READING_METHODS:
            return _READ
        return self._depth_of_item(call) if attribute.attr == "get" else int(attribute.attr in _ITEM_METHODS)

    def _depth_of_item(self, item: ast.expr) -> int:
        return min(_READ, self._depth(item) + 1)


def _dotted(node: ast.expr) -> str | None:
    """Return a dotted name as it is written. None for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else None


def _nodes(code: CodeType) -> list[_FunctionNode]:
    """Return the syntax trees that `code` may come from. Several lambdas on one line give several."""
    return _functions_of(code.co_filename).get((code.co_firstlineno, code.co_name), [])


@cache
def _functions_of(path: str) -> dict[tuple[int, str], list[_FunctionNode]]:
    found: dict[tuple[int, str], list[_FunctionNode]] = {}
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, SystemError):  # Python 3.11 raises SystemError when another thread parses at the same time
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first: Any = min([node, *node.decorator_list], key=lambda one: one.lineno)
            found.setdefault((first.lineno, node.name), []).append(node)
        elif isinstance(node, ast.Lambda):
            found.setdefault((node.lineno, "<lambda>"), []).append(node)
    return found

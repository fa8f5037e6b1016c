"""`make tidy` (`python -m tests.tidy`): sizes of files, functions and classes, foreign writes and import cycles.

Owns the measurements of the source and the numbers above which a place is printed. Must not refuse anything: a size is
a sign, and `tests/test_tidy.py` holds the rules. Invariants: files are those that git has or would add; a class's
attributes are its annotated fields and what its methods assign to `self`; a foreign write is an assignment to an
attribute of any other object; imports under TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grimp

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

ROOT = Path(__file__).parents[1]
FILE_LINES, FUNCTION_LINES, ATTRIBUTES, FOREIGN_WRITES, CYCLE_MODULES = 400, 40, 15, 5, 3
HEAD_LINES = 15
IMPORTING = (
    "proxy",
    "protocol",
    "blockcache",
    "throttle",
    "isolation",
    "metrics",
    "spark_audit",
    "bench",
    "tests",
)


class Place(NamedTuple):
    """A file, function or class and one of its sizes; `line` is 1 for a file."""

    file: str
    line: int
    name: str
    size: int


@cache
def listed(*suffixes: str) -> tuple[str, ...]:
    """Names, relative to the root, of files that git has or would add; of the given endings, if any."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    said = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    names = sorted({name for name in said if name and (ROOT / name).is_file()})
    return tuple(name for name in names if not suffixes or name.endswith(suffixes))


@cache
def read(name: str) -> str:
    """A file's text; "" for a file that is not text or not there."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return ""


def scan_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of every Python function, nested functions included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def scan_c_functions(text: str) -> Iterator[tuple[str, int]]:
    """(first line, lines) of everything that begins in the first column and has a body which ends there."""
    start, has_body, first = 0, False, ""
    for number, line in enumerate(text.splitlines()):
        if not first and re.match(r"[A-Za-z_]", line):
            start, has_body, first = number, False, line
        has_body = has_body or "{" in line
        if first and (line.startswith("}") or (not has_body and line.rstrip().endswith(";"))):
            if has_body and "(" in first:
                yield first, number - start + 1
            first = ""
        elif first and number == start and line.rstrip().endswith(("}", "};")):
            first = ""


def scan_writes(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is assigned to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node


def is_own(write: ast.Attribute) -> bool:
    """Whether the assignment is to an attribute of `self` or `cls` itself."""
    return isinstance(write.value, ast.Name) and write.value.id in ("self", "cls")


def scan_classes(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, attributes) of every Python class."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            names = {target.id for target in fields if isinstance(target, ast.Name)}
            names |= {write.attr for write in scan_writes(node) if is_own(write)}
            yield node.name, node.lineno, len(names)


def count_foreign_writes(text: str) -> int:
    """Assignments to attributes of objects other than `self`."""
    return sum(not is_own(write) for write in scan_writes(ast.parse(text)))


def find_root(node: ast.expr) -> str | None:
    """The name at the left of attributes and subscripts; None if it is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def find_own_names(function: ast.AST) -> set[str]:
    """`self`, and local names of what belongs to it."""
    own = {"self"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                own |= {
                    name.id
                    for name, value in pairs
                    if isinstance(name, ast.Name)
                    and isinstance(value, ast.Attribute)
                    and ast.unparse(value) in OWN_ATTRIBUTES
                }
    return own


OWN_ATTRIBUTES = {"self._native", "self.native", "self.row"}
"""Memory that an object made for C: its fields are the object's own."""


def scan_foreign_writes(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of each assignment to an attribute that is not of `self`, nor of its memory for C."""
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            own = find_own_names(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                    is_deep = isinstance(node.value, ast.Attribute | ast.Subscript)
                    mine = find_root(node) in own and (
                        not is_deep or ast.unparse(node.value) in OWN_ATTRIBUTES
                    )
                    if not mine:
                        yield node.lineno, ast.unparse(node)


def scan_judgements(text: str, judged: Container[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute of these that is read."""
    found = [
        (node.lineno, node.attr)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in judged
    ]
    yield from sorted(found)


def count_head_lines(text: str) -> int:
    """Lines of a Python module's docstring; 0 without one."""
    head = ast.get_docstring(ast.parse(text))
    return head.count("\n") + 1 if head else 0


def find_groups(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node, each sorted, the largest first (Kosaraju)."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(start: str, edges: dict[str, set[str]], found: list[str]) -> None:
        stack = [(start, iter(sorted(edges.get(start, ()))))]
        seen.add(start)
        while stack:
            ahead = stack[-1][1]
            following = next((one for one in ahead if one not in seen), None)
            if following is None:
                found.append(stack.pop()[0])
            else:
                seen.add(following)
                stack.append((following, iter(sorted(edges.get(following, ())))))

    for node in sorted(graph):
        if node not in seen:
            visit(node, graph, order)
    backward: dict[str, set[str]] = {}
    for node, targets in graph.items():
        for target in targets:
            backward.setdefault(target, set()).add(node)
    seen.clear()
    groups: list[list[str]] = []
    for node in reversed(order):
        if node not in seen:
            groups.append([])
            visit(node, backward, groups[-1])
    return sorted(
        (sorted(group) for group in groups if len(group) > 1),
        key=lambda group: (-len(group), group),
    )


@cache
def find_imports() -> dict[str, set[str]]:
    """The modules that each module imports, for types included, wherever in it the import stands."""
    graph = grimp.build_graph(*IMPORTING, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def find_cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of more than CYCLE_MODULES modules that import each other."""
    return [group for group in find_groups(imports) if len(group) > CYCLE_MODULES]


def name_room(module: str) -> str:
    """The package, and in proxy the package or module below it."""
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] == "proxy" else parts[:1])


def join_rooms(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """The rooms that the modules of each room import, itself left out."""
    rooms: dict[str, set[str]] = {}
    for module, imported in imports.items():
        room = name_room(module)
        rooms.setdefault(room, set()).update(map(name_room, imported))
    return {room: imported - {room} for room, imported in rooms.items()}


def name_package(file: str) -> str:
    """The folder whose numbers a file counts in: for proxy and tests the one below, else the topmost."""
    parts = Path(file).parent.parts
    return "/".join(parts[:2] if parts and parts[0] in ("proxy", "tests") else parts[:1]) or "."


def percentile(values: Iterable[int], share: float) -> int:
    """The nearest rank; 0 of no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


class Sizes(NamedTuple):
    """All that is measured, whatever its size."""

    files: list[Place]
    functions: list[Place]
    classes: list[Place]
    writes: list[Place]
    heads: list[Place]


def measure() -> Sizes:
    """The sizes of every Python file, and of every C file and shell script as a whole."""
    sizes = Sizes([], [], [], [], [])
    for file in listed(".py", ".c", ".h", ".sh", "Makefile"):
        text = read(file)
        sizes.files.append(Place(file, 1, "", text.count("\n")))
        if file.endswith(".py"):
            sizes.functions.extend(
                Place(file, line, name, size) for name, line, size in scan_functions(text)
            )
            sizes.classes.extend(
                Place(file, line, name, size) for name, line, size in scan_classes(text)
            )
            sizes.writes.append(Place(file, 1, "", count_foreign_writes(text)))
            sizes.heads.append(Place(file, 1, "", count_head_lines(text)))
    return sizes


def describe_package(package: str, sizes: Sizes) -> str:
    """One row of the table."""
    kinds = [[one.size for one in kind if name_package(one.file) == package] for kind in sizes]
    cells = [
        f"{percentile(kind, 0.5)} / {percentile(kind, 0.9)} / {max(kind, default=0)}"
        for kind in kinds
    ]
    density = 1000 * sum(kinds[3]) / max(sum(kinds[0]), 1)
    return f"{package:24}{len(kinds[0]):6}{cells[0]:>20}{cells[1]:>16}{cells[2]:>16}{density:10.1f}"


def describe_outliers(title: str, places: list[Place], bound: int) -> Iterator[str]:
    """A title with the count, and a line for each place above the bound, the largest first."""
    found = sorted((one for one in places if one.size > bound), key=lambda one: -one.size)
    yield f"\n{title} above {bound}: {len(found)}"
    for one in found:
        yield f"{one.size:6}  {one.file}:{one.line} {one.name}".rstrip()


def main() -> None:
    """Print the table and the places to look."""
    sizes = measure()
    heads = f"{'files':>6}{'file lines':>20}{'function':>16}{'attributes':>16}{'writes':>10}"
    print(f"{'median / p90 / max':24}{heads}   (writes: to other objects, in 1,000 lines)")
    for package in sorted({name_package(one.file) for one in sizes.files}):
        print(describe_package(package, sizes))
    outliers = (
        ("Lines of a file", sizes.files, FILE_LINES),
        ("Lines of a function", sizes.functions, FUNCTION_LINES),
        ("Attributes of a class", sizes.classes, ATTRIBUTES),
        ("Writes of a file to other objects' attributes", sizes.writes, FOREIGN_WRITES),
        ("Lines of a file's head", sizes.heads, HEAD_LINES),
    )
    for title, places, bound in outliers:
        print(*describe_outliers(title, places, bound), sep="\n")
    cycles = find_cycles(find_imports())
    print(f"\nImport cycles above {CYCLE_MODULES} modules: {len(cycles)}")
    for group in cycles:
        print(f"{len(group):6}  {' '.join(group)}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()

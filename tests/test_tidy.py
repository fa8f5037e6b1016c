"""The house rules that a linter does not know, over every file that git has or would add.

Owns the rules: heads, the length of C functions, pairing of tests and subjects, words that may not appear. There is no
list of exceptions. Must not judge other sizes, which `tests.tidy` prints, nor imports, which lint-imports judges.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import LONGEST
from tests.tidy import (
    ROOT,
    count_foreign_writes,
    find_groups,
    listed,
    read,
    scan_c_functions,
    scan_classes,
    scan_foreign_writes,
    scan_functions,
    scan_judgements,
)

PACKAGES = (
    "proxy",
    "protocol",
    "blockcache",
    "throttle",
    "isolation",
    "metrics",
    "spark_audit",
    "bench",
    "tests/kit",
)
C_FUNCTION_LINES = 40
FAST = ("proxy/produce/pipeline.py",)
"""Second ways of a request: they ask the decision functions of other rooms, and those change their own state."""
JUDGED = {
    "acknowledged_end",
    "ages_at_s",
    "due_at",
    "entries",
    "epoch",
    "fidelity",
    "frozen",
    "generation",
    "hang_after_s",
    "high_watermark",
    "in_flight_bytes",
    "in_use",
    "is_dispatching",
    "is_followed",
    "last_timely",
    "leader_state",
    "lease",
    "limit_bytes",
    "next_health_check_at",
    "parked",
    "refused",
    "request_bytes",
    "tail",
    "waiting",
    "watched",
}
"""Attributes that only the room which owns them compares."""
# Put together from parts, so that this file passes its own test.
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
MACHINE_ROOTS = ("work", "root", "home")
REGISTRIES = (
    ("maven", "org"),
    ("maven", "apache", "org"),
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("golang", "org"),
    ("npmjs", "org"),
    ("crates", "io"),
    ("debian", "org"),
    ("ubuntu", "com"),
)
RETIRED = frozenset(
    {
        "fly",
        "flies",
        "flights",
        "gate",
        "gone",
        "lane",
        "lanes",
        "nameable",
        "pacer",
        "stir",
        "truth",
        "wire",
        "wires",
    }
)
BANNED = {
    "an unfinished thought": re.compile(rf"\b(?:{'|'.join(UNFINISHED)})\b"),
    "a test switched off for good": re.compile(r"pytest\.mark\." + r"skip(?!if)"),
    "a path of one machine": re.compile(rf"(?<![\w.}}~])/(?:{'|'.join(MACHINE_ROOTS)})/"),
    # Go's own packages are named by the host's name: an import is no address.
    "a registry's host": re.compile(
        rf"(?<!google\.)(?:{'|'.join(re.escape('.'.join(parts)) for parts in REGISTRIES)})(?!/x/)"
    ),
    "a private key": re.compile("BEGIN " + r"[A-Z ]*PRIVATE KEY"),
    "a name that says nothing": re.compile(r"^class \w*(?:Manager|Helper|Utils?)\b", re.MULTILINE),
}


def test_c_functions_are_short() -> None:
    found = [(name, *one) for name in listed(".c", ".h") for one in scan_c_functions(read(name))]
    assert [one for one in found if one[2] > C_FUNCTION_LINES] == []


def wrong_head(name: str) -> str | None:
    """What is wrong with a Python module's docstring; an empty module needs none."""
    tree = ast.parse(read(name))
    head = ast.get_docstring(tree) or ""
    if not tree.body:
        return None
    if not head:
        return f"{name}: no docstring"
    if "\n" not in head and not name.startswith("tests/") and not name.endswith("__.py"):
        return f"{name}: one line cannot say what it owns, must not know, and keeps true"
    return None


def test_python_files_have_a_head() -> None:
    assert [wrong for name in listed(".py") if (wrong := wrong_head(name))] == []


def test_c_files_have_a_head() -> None:
    assert [name for name in listed(".c", ".h") if not read(name).startswith("/*")] == []


@cache
def find_subjects(place: Path) -> set[str]:
    """The files and folders of a folder, without endings and outer underscores."""
    below = [Path(one).relative_to(place) for one in listed() if place in Path(one).parents]
    return {one.parts[0].split(".")[0].strip("_") for one in below}


def has_subject(name: str) -> bool:
    """Whether test_x.py or test_x_detail.py has an x: a file or folder of the package or beside it."""
    test = Path(name)
    subjects = find_subjects(test.parent) | find_subjects(Path(*test.parent.parts[1:]))
    wanted = test.stem.removeprefix("test_").strip("_")
    return any(wanted == subject or wanted.startswith(f"{subject}_") for subject in subjects)


def test_tests_mirror_the_tree() -> None:
    code = {Path(name).parent.as_posix() for name in listed(".py")}
    rooms = {place for place in code if place.removeprefix("tests/").startswith("proxy/")}
    places = {*PACKAGES, *(f"tests/{package}" for package in PACKAGES), *rooms}
    tests = [name for name in listed(".py") if Path(name).name.startswith("test_")]
    mirrors = [name for name in tests if Path(name).parent.as_posix() in places]
    assert [name for name in mirrors if not has_subject(name)] == []


@pytest.mark.parametrize("what", BANNED)
def test_nothing_banned(what: str) -> None:
    found = [
        f"{name}: {match.group()}"
        for name in listed()
        for match in BANNED[what].finditer(read(name))
    ]
    assert found == []


@pytest.mark.parametrize("name", FAST)
def test_a_fast_path_judges_nothing_and_writes_nothing_foreign(name: str) -> None:
    assert list(scan_judgements(read(name), JUDGED)) == []
    assert list(scan_foreign_writes(read(name))) == []


def test_rules_of_a_fast_path_see_what_they_forbid() -> None:
    text = """
class A:
    def f(self, link, other):
        native, other_value = self._native, 1
        native.route = self.mine = self._native.count = 1
        link.client_id = 2
        link.bytes += 3
        del link.bytes
        (link.first, self.second) = other.epoch, link.broker.now()
        if other.leader_state.epoch == 1 or link.refused.entries:
            link.refused_late()
"""
    assert list(scan_foreign_writes(text)) == [
        (6, "link.client_id"),
        (7, "link.bytes"),
        (8, "link.bytes"),
        (9, "link.first"),
    ]
    assert list(scan_judgements(text, JUDGED)) == [
        (9, "epoch"),
        (10, "entries"),
        (10, "epoch"),
        (10, "leader_state"),
        (10, "refused"),
    ]


def test_the_longest_files_are_there() -> None:
    assert [place for place in LONGEST if not (ROOT / place).exists()] == []


def scan_names(text: str) -> set[str]:
    """The words of all names in a Python text, small."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    names = [one.string for one in tokens if one.type == tokenize.NAME]
    return {word for name in names for word in name.lower().split("_")}


def test_retired_words_name_nothing() -> None:
    """Words of the first years that no reader of Kafka's source would look for; docs/glossary.md has the terms."""
    code = [name for name in listed(".py") if name.startswith(("proxy/", "isolation/"))]
    assert [(name, found) for name in code if (found := scan_names(read(name)) & RETIRED)] == []
    assert scan_names("def a(wire_bytes): self.Pacer") & RETIRED == {"wire", "pacer"}


def scan_type_names(text: str) -> list[str]:
    """Classes, and aliases of types at the module's level, of a Python text, without outer underscores."""
    tree = ast.parse(text)
    classes = [one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    aliases = []
    for one in tree.body:
        targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
        aliases += [target.id for target in targets if isinstance(target, ast.Name)]
    aliases = [name for name in aliases if name.strip("_")[:1].isupper() and not name.isupper()]
    return [name.strip("_") for name in classes + aliases]


def test_a_type_of_the_product_has_a_name_of_its_own() -> None:
    product = tuple(f"{package}/" for package in PACKAGES if package not in ("bench", "tests/kit"))
    places: dict[str, list[str]] = {}
    for file_name in listed(".py"):
        if file_name.startswith(product):
            for type_name in scan_type_names(read(file_name)):
                places.setdefault(type_name, []).append(file_name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
    text = "class _A1:\n    class B1: ...\n\nKey = int\nT1 = LIMIT = 3\nPair: TypeAlias = int\n"
    assert scan_type_names(text) == ["A1", "B1", "Key", "Pair"]


def test_file_names_say_something() -> None:
    assert [
        name for name in listed(".py") if Path(name).stem in ("utils", "helpers", "common", "misc")
    ] == []


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_names_the_two_commands(command: str) -> None:
    assert command in read("README.md")


def test_rules_see_what_they_forbid() -> None:
    body = "    a++;\n" * 3
    long = f"int f(int a,\n      int b) {{\n{body}}}\n"
    text = f"enum {{ A = 1 }};\nint g(int a);\n{long}int h(void) {{ return 1; }}\n"
    assert list(scan_c_functions(text)) == [("int f(int a,", 6)]
    bad = {
        "an unfinished thought": f"# {UNFINISHED[0]}: x",
        "a path of one machine": f'"/{MACHINE_ROOTS[0]}/x"',
    }
    bad |= {"a registry's host": "https://repo1." + ".".join(REGISTRIES[0])}
    bad |= {"a test switched off for good": "@pytest.mark." + "skip"}
    assert [what for what, text in bad.items() if not BANNED[what].search(text)] == []
    work, root, home = MACHINE_ROOTS
    assert not BANNED["a path of one machine"].search(f"app/{home}/x, ~/{work}/, a.b/{root}/")


def test_sizes_are_measured() -> None:
    text = """
class A:
    size: int

    def grow(self, other):
        self.size, self.name = 1, ""
        self.size += 1
        other.size = self.part.size = 2
"""
    assert list(scan_functions(text)) == [("grow", 5, 4)]
    assert list(scan_classes(text)) == [("A", 2, 2)]
    assert count_foreign_writes(text) == 2


def test_modules_that_import_each_other_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert find_groups(graph) == [["a", "b", "c"], ["d", "e"]]

"""The house rules that a linter does not know, over every file that git has or would add.

Owns the numbers: sizes, heads, pairing of tests and subjects, words that may not appear. There is no list of
exceptions. What may import what is lint-imports' business.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
FILE_LINES, FUNCTION_LINES, C_FUNCTION_LINES, HEAD_LINES = 500, 60, 40, 15
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
BANNED = {
    "an unfinished thought": re.compile(rf"\b(?:{'|'.join(UNFINISHED)})\b"),
    "a test switched off for good": re.compile(r"pytest\.mark\." + r"skip(?!if)"),
    "a path of one machine": re.compile(rf"(?<![\w.}}~])/(?:{'|'.join(MACHINE_ROOTS)})/"),
    "a registry's host": re.compile("|".join(re.escape(".".join(parts)) for parts in REGISTRIES)),
    "a private key": re.compile("BEGIN " + r"[A-Z ]*PRIVATE KEY"),
    "a name that says nothing": re.compile(r"^class \w*(?:Manager|Helper|Utils?)\b", re.MULTILINE),
}


@cache
def listed(*suffixes: str) -> tuple[str, ...]:
    """Names, relative to the root, of files that git has or would add; of the given endings, if any."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    names = sorted({name for name in said if name and (ROOT / name).is_file()})
    return tuple(name for name in names if not suffixes or name.endswith(suffixes))


@cache
def read(name: str) -> str:
    """A file's text; "" for one that is not text or not there."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return ""


def scan_python_functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function, nested ones included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.name, node.end_lineno - node.lineno + 1


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


def test_files_are_small() -> None:
    code = listed(".py", ".c", ".h", ".sh", "Makefile")
    assert [name for name in code if read(name).count("\n") > FILE_LINES] == []


def test_functions_are_short() -> None:
    found = [(name, *one) for name in listed(".py") for one in scan_python_functions(read(name))]
    assert [one for one in found if one[2] > FUNCTION_LINES] == []


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
    if head.count("\n") >= HEAD_LINES:
        return f"{name}: more than {HEAD_LINES} lines"
    if "\n" not in head and not name.startswith("tests/") and not name.endswith("__.py"):
        return f"{name}: one line cannot say what it owns, must not know, and keeps true"
    return None


def test_python_files_have_a_head() -> None:
    assert [wrong for name in listed(".py") if (wrong := wrong_head(name))] == []


def test_c_files_have_a_head() -> None:
    assert [name for name in listed(".c", ".h") if not read(name).startswith("/*")] == []


def has_subject(name: str) -> bool:
    """Whether test_x.py or test_x_detail.py has an x: a file or folder of the package or beside it."""
    test = Path(name)
    places = (test.parent, Path(*test.parent.parts[1:]))
    below = [
        Path(one).relative_to(place) for place in places for one in listed() if place in Path(one).parents
    ]
    subjects = {one.parts[0].split(".")[0].strip("_") for one in below}
    wanted = test.stem.removeprefix("test_").strip("_")
    return any(wanted == subject or wanted.startswith(f"{subject}_") for subject in subjects)


def test_tests_mirror_the_tree() -> None:
    code = {Path(name).parent.as_posix() for name in listed(".py")}
    places = {place for place in code if place.removeprefix("tests/").startswith(PACKAGES)}
    tests = [name for name in listed(".py") if Path(name).name.startswith("test_")]
    mirrors = [name for name in tests if Path(name).parent.as_posix() in places]
    assert [name for name in mirrors if not has_subject(name)] == []


@pytest.mark.parametrize("what", BANNED)
def test_nothing_banned(what: str) -> None:
    found = [f"{name}: {match.group()}" for name in listed() for match in BANNED[what].finditer(read(name))]
    assert found == []


def test_file_names_say_something() -> None:
    assert [name for name in listed(".py") if Path(name).stem in ("utils", "helpers", "common", "misc")] == []


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_names_the_two_commands(command: str) -> None:
    assert command in read("README.md")


def test_rules_see_what_they_forbid() -> None:
    body = "    a++;\n" * 3
    long = f"int f(int a,\n      int b) {{\n{body}}}\n"
    text = f"enum {{ A = 1 }};\nint g(int a);\n{long}int h(void) {{ return 1; }}\n"
    assert list(scan_c_functions(text)) == [("int f(int a,", 6)]
    assert list(scan_python_functions("def f():\n    def g():\n        pass\n")) == [("f", 3), ("g", 2)]
    bad = {
        "an unfinished thought": f"# {UNFINISHED[0]}: x",
        "a path of one machine": f'"/{MACHINE_ROOTS[0]}/x"',
    }
    bad |= {"a registry's host": "https://repo1." + ".".join(REGISTRIES[0])}
    bad |= {"a test switched off for good": "@pytest.mark." + "skip"}
    assert [what for what, text in bad.items() if not BANNED[what].search(text)] == []
    work, root, home = MACHINE_ROOTS
    assert not BANNED["a path of one machine"].search(f"app/{home}/x, ~/{work}/, a.b/{root}/")

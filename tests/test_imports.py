"""Imports: each module of the product can be imported first, and no module stands in a long circle of imports.

Owns one fresh interpreter that forgets the product's modules before each; modules from elsewhere stay. Further tests
hold the import contracts complete. Imports for types count, and there is no list of exceptions.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.tidy import IMPORTING, find_cycles, find_groups, find_imports, join_rooms, listed

ROOT = Path(__file__).parents[1]
PACKAGES = ("blockcache", "isolation", "metrics", "protocol", "proxy", "spark_audit", "throttle")
ALONE = """
import importlib, sys, traceback
packages, names = sys.argv[1].split(","), sys.argv[2:]
for name in names:
    for known in [known for known in sys.modules if known.split(".")[0] in packages]:
        del sys.modules[known]
    try:
        importlib.import_module(name)
    except Exception:
        print(name, traceback.format_exc(limit=-3))
"""


def modules() -> list[str]:
    """All but the entry points, which run when they are imported."""
    paths = [
        path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    ]
    return [".".join(path.with_suffix("").parts) for path in sorted(paths) if path.stem[:2] != "__"]


def test_each_module_can_be_imported_first() -> None:
    names = modules()
    assert {name.split(".")[0] for name in names} == set(PACKAGES)
    command = [sys.executable, "-c", ALONE, ",".join(PACKAGES), *names]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_module_of_the_bench_can_be_imported() -> None:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "bench").rglob("*.py"))]
    names = [".".join(path.with_suffix("").parts) for path in paths if path.stem[:2] != "__"]
    assert "bench.micro.wide" in names
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stdout, done.stdout


def test_contracts_name_every_package_of_the_tests() -> None:
    """import-linter has no pattern for "all but the kit", so that the contracts list the packages."""
    names = {f"tests.{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")}
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = {contract["name"]: contract for contract in linted["contracts"]}
    bench = contracts["Bench imports of the tests only their kit"]
    assert set(bench["forbidden_modules"]) == names - {"tests.kit"}
    tests = contracts["Tests import no bench, except the bench's own"]
    assert set(tests["source_modules"]) == names - {"tests.bench"} | {"tests.conftest"}
    kit = contracts["The kit imports neither tests nor bench"]
    assert set(kit["forbidden_modules"]) == names - {"tests.kit"} | {"bench"}


def test_every_python_file_is_a_module_of_the_graph() -> None:
    """A folder without `__init__.py` would be left out of it."""
    files = [Path(name) for name in listed(".py") if name.split("/")[0] in IMPORTING]
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    assert names == set(find_imports())


def test_no_more_than_three_modules_import_each_other() -> None:
    assert find_cycles(find_imports()) == []


def test_no_rooms_import_each_other() -> None:
    """The contract of the layers names rooms; this holds for a new one, too."""
    imports = find_imports()
    product = {name: imports[name] for name in imports if name.split(".")[0] in PACKAGES}
    assert find_groups(join_rooms(product)) == []


def imports_by_call(name: str) -> bool:
    """Whether a file imports what no graph of imports shows."""
    return any(call in (ROOT / name).read_text() for call in ("import_module", "__import__"))


def test_imports_are_not_hidden() -> None:
    """By a call in a module that another imports, by an exception of a contract, or as imports for types."""
    product = [name for name in listed(".py") if name.split("/")[0] in PACKAGES]
    calling = {name[:-3].replace("/", ".") for name in product if imports_by_call(name)}
    calling_and_imported = {
        (importer, imported)
        for importer, all_imported in find_imports().items()
        for imported in all_imported & calling
        if importer.split(".")[0] in PACKAGES and not importer.endswith("__main__")
    }
    assert calling_and_imported == set()
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert "exclude_type_checking_imports" not in linted
    ignored = {
        one for contract in linted["contracts"] for one in contract.get("ignore_imports", ())
    }
    assert ignored == {"protocol.control -> kio"}


def test_imports_between_rooms_are_seen() -> None:
    imports = {
        "proxy.net.a": {"proxy.net.b", "proxy.fetch.c"},
        "proxy.net.b": set(),
        "proxy.fetch.c": {"proxy.app", "protocol.d"},
        "proxy.app": {"proxy.net"},
    }
    rooms = join_rooms(imports)
    assert rooms["proxy.fetch"] == {"proxy.app", "protocol"}
    assert find_groups(rooms) == [["proxy.app", "proxy.fetch", "proxy.net"]]
    circle = {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"a"}}
    assert (len(find_cycles(circle)), find_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == (1, [])

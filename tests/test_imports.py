"""Each module of the product can be imported first: none relies on what another has imported before it.

Owns one fresh interpreter that forgets the product's modules before each; modules from elsewhere stay. A second test
holds the import contracts of tests and bench complete.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

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

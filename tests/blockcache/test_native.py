"""The C code by itself: the layout that the header draws, and random operations under ASan and UBSan.

A compiler without these sanitizers is a failure, with what to install.
"""

import subprocess
from pathlib import Path

import pytest
from blockcache._pyfastcache import ffi, lib

from blockcache import _build

NATIVE = Path(_build.__file__).parent / "native"
DRIVER = Path(__file__).parent / "native" / "driver.c"
SANITIZED = (
    *("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
SIZES = {
    "fc_arena": 512,
    "fc_partition": 128,
    "fc_entry": 48,
    "fc_item": 16,
    "fc_node": 256,
    "fc_block": 96,
    "fc_ghost": 48,
    "fc_segment": 32,
    "fc_hit": 32 + 512 * 32,
    "fc_inserted": 56,
    "fc_edges": 48,
}
FIRST_FIELDS = {
    "fc_arena": "magic",
    "fc_entry": "covers_from",
    "fc_hit": "next_offset",
    "fc_inserted": "position",
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    assert ffi.sizeof(name) == SIZES[name]


@pytest.mark.parametrize("name", FIRST_FIELDS)
def test_first_fields(name: str) -> None:
    assert ffi.offsetof(name, FIRST_FIELDS[name]) == 0


def test_bounds_are_those_of_the_arrays() -> None:
    assert ffi.sizeof("fc_node") == 16 + lib.FC_LEAF_MAX * ffi.sizeof("fc_entry")
    assert ffi.sizeof("fc_node") == 16 + lib.FC_INNER_MAX * ffi.sizeof("fc_item")
    assert lib.FC_LEAF_MAX * lib.FC_INNER_MAX ** (lib.FC_HEIGHT_MAX - 1) > 2**40


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver and the library, built with sanitizers."""
    program = tmp_path_factory.mktemp("native") / "driver"
    sources = [str(DRIVER), *map(str, sorted(NATIVE.glob("*.c")))]
    command = [*_build.find_compiler(), *SANITIZED, "-I", str(NATIVE), *sources, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        "the C tests need a compiler with AddressSanitizer and UBSan "
        f"(on Debian or Ubuntu: apt install gcc libc6-dev):\n{done.stderr}"
    )
    return program


@pytest.mark.parametrize(("seed", "steps", "arena_bytes", "shared_bytes", "observe"), [
    (1, 8000, 64 << 10, 0, 0),
    (2, 8000, 128 << 10, 0, 0),
    (3, 8000, 128 << 10, 4 << 10, 0),
    (4, 8000, 256 << 10, 16 << 10, 0),
    (5, 10000, 512 << 10, 32 << 10, 0),
    (6, 40000, 4 << 20, 64 << 10, 0),
    (7, 10000, 512 << 10, 32 << 10, 1),
])  # fmt: skip
def test_random_operations_under_sanitizers(
    driver: Path, seed: int, steps: int, arena_bytes: int, shared_bytes: int, observe: int
) -> None:
    command = [driver, *map(str, (seed, steps, arena_bytes, shared_bytes, observe))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counted = dict(zip(done.stdout.split()[::2], done.stdout.split()[1::2], strict=False))
    assert int(counted["hits"]) > 100 and int(counted["conflicts"]) > 5
    assert observe or int(counted["limbo"]) > 10

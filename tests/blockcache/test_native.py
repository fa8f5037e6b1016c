"""The C code by itself: the layout that the header draws, and random operations under ASan and UBSan.

A compiler without these sanitizers is a failure, with what to install.
"""

import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from blockcache._pyfastcache import ffi, lib

from blockcache import _build
from blockcache.layout import BLOCK, ENTRY, PARTITION, BlockHead, IndexEntry, PartitionSlot
from blockcache.results import Edges

NATIVE = Path(_build.__file__).parent / "native"
DRIVER = Path(__file__).parent / "native" / "driver.c"
STEPPING = Path(__file__).parent / "native" / "stepping.c"
KILLING = Path(__file__).parent / "native" / "killing.c"
PTRACE_FORBIDDEN = 77
SANITIZED = (
    *("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
SIZES = {
    "fc_arena": 1368,
    "fc_partition": 128,
    "fc_entry": 48,
    "fc_item": 16,
    "fc_node": 256,
    "fc_block": 160,
    "fc_ghost": 48,
    "fc_segment": 32,
    "fc_hit": 48 + 512 * 32,
    "fc_inserted": 64,
    "fc_edges": 48,
}
READ_FROM_BESIDE: dict[str, Any] = {
    "fc_partition": PartitionSlot,
    "fc_entry": IndexEntry,
    "fc_block": BlockHead,
}
FORMATS = {"fc_partition": PARTITION, "fc_entry": ENTRY, "fc_block": BLOCK}
SECTIONS = {
    "magic": 0,
    "layout": 8,
    "partitions_at": 24,
    "ghosts_at": 64,
    "taken_at": 88,
    "starts_at": 96,
    "nodes_at": 104,
    "data_at": 144,
    "changes": 472,
    "admitted_before": 512,
    "alive_at": 520,
    "identity": 528,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    assert ffi.sizeof(name) == SIZES[name]


def test_places_of_the_sections() -> None:
    assert {name: ffi.offsetof("fc_arena", name) for name in SECTIONS} == SECTIONS


@pytest.mark.parametrize("name", READ_FROM_BESIDE)
def test_formats_have_the_fields_of_c_in_their_places(name: str) -> None:
    in_c = {field: ffi.offsetof(name, field) for field, _ in ffi.typeof(name).fields}
    parts = re.findall(r"\d+s|\w", FORMATS[name].format.removeprefix("="))
    places = [struct.calcsize("=" + "".join(parts[:i])) for i in range(len(parts))]
    fields = [
        "index" if field == "partition" else field for field in READ_FROM_BESIDE[name]._fields
    ]
    assert in_c == dict(zip(fields, places, strict=True))


def test_hits_and_inserts_are_words_in_the_order_that_python_unpacks() -> None:
    fields = [field for field, _ in ffi.typeof("fc_inserted").fields]
    assert fields == [
        "position",
        "covers_from",
        "first_offset",
        "next_offset",
        "conflict_offset",
        "stored_bytes",
        "skipped_bytes",
        "stored_batches",
    ]
    assert [field for field, _ in ffi.typeof("fc_hit").fields][: lib.FC_HIT_HEAD] == [
        "next_offset",
        "size_bytes",
        "segments",
        "pinned",
        "admitted",
        "cut",
    ]
    assert [field for field, _ in ffi.typeof("fc_response").fields] == [
        "room_bytes",
        "hits",
        "hit_bytes",
        "size_bytes",
        "holder",
    ]
    assert [field for field, _ in ffi.typeof("fc_taken").fields] == [
        "size_bytes",
        "next_offset",
        "admitted",
        "timestamp",
    ]
    assert tuple(field for field, _ in ffi.typeof("fc_edges").fields) == Edges._fields


def test_bounds_are_those_of_the_arrays() -> None:
    assert ffi.sizeof("fc_node") == 16 + lib.FC_LEAF_MAX * ffi.sizeof("fc_entry")
    assert ffi.sizeof("fc_node") == 16 + lib.FC_INNER_MAX * ffi.sizeof("fc_item")
    assert lib.FC_LEAF_MAX * lib.FC_INNER_MAX ** (lib.FC_HEIGHT_MAX - 1) > 2**40


def build_sanitized(source: Path, native: Path, directory: Path, *others: Path) -> Path:
    """The program of `source` and the libraries in `native` and `others`, built with sanitizers into `directory`."""
    program = directory / source.stem
    sources = [str(source)]
    for one in (native, *others):
        sources += [*map(str, sorted(one.glob("*.c"))), "-I", str(one)]
    command = [*_build.find_compiler(), *SANITIZED, *sources, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        "the C tests need a compiler with AddressSanitizer and UBSan "
        f"(on Debian or Ubuntu: apt install gcc libc6-dev):\n{done.stderr}"
    )
    return program


def count_rows(program: Path, rows: list[bytes], *arguments: int) -> dict[str, int]:
    """What a program counts over the rows that it is given, by name."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, input=b"".join(rows), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    words = done.stdout.decode().split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver and the library, built with sanitizers."""
    return build_sanitized(DRIVER, NATIVE, tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize(
    ("seed", "steps", "arena_bytes", "shared_bytes", "observe", "holders"),
    [
        (1, 8000, 64 << 10, 0, 0, 1),
        (2, 8000, 128 << 10, 0, 0, 1),
        (3, 8000, 128 << 10, 4 << 10, 0, 1),
        (4, 8000, 256 << 10, 16 << 10, 0, 1),
        (5, 10000, 512 << 10, 32 << 10, 0, 1),
        (6, 40000, 4 << 20, 64 << 10, 0, 1),
        (7, 10000, 512 << 10, 32 << 10, 1, 1),
        (8, 8000, 64 << 10, 0, 0, 4),
        (9, 8000, 256 << 10, 16 << 10, 0, 4),
        (10, 8000, 1 << 20, 64 << 10, 0, 4),
    ],
)
def test_random_operations_under_sanitizers(
    driver: Path,
    seed: int,
    steps: int,
    arena_bytes: int,
    shared_bytes: int,
    observe: int,
    holders: int,
) -> None:
    command = [str(driver), *map(str, (seed, steps, arena_bytes, shared_bytes, observe, holders))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counted = dict(zip(done.stdout.split()[::2], done.stdout.split()[1::2], strict=False))
    assert int(counted["hits"]) > 100 and int(counted["conflicts"]) > 5
    assert observe or int(counted["responses"]) > 3
    assert int(counted["deaths"]) > 3 and int(counted["refused"]) > 10
    assert int(counted["harmless"]) > 3
    assert int(counted["unaborted"]) > 10
    assert observe or (int(counted["limbo"]) > 10 and int(counted["adopted"]) > 10)


def build_as_product(source: Path, directory: Path) -> Path:
    """The program of `source` and the library, with the flags of the product."""
    program = directory / source.stem
    sources = [source, *sorted(NATIVE.glob("*.c"))]
    flags = [*_build.STRICT, "-pthread", "-I", str(NATIVE), "-o", str(program)]
    _build.run_compiler([*_build.find_compiler(), *flags, *map(str, sources)])
    return program


def run_stepped(program: Path, *arguments: int) -> dict[str, int]:
    """What a program counts that steps through calls by ptrace."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == PTRACE_FORBIDDEN:
        pytest.skip("ptrace is forbidden here")
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


@pytest.fixture(scope="module")
def stepping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that looks at each store."""
    return build_as_product(STEPPING, tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_process_that_dies_at_any_store_leaves_a_whole_arena_or_one_that_is_refused(
    stepping: Path, seed: int
) -> None:
    counted = run_stepped(stepping, seed, 4000, 2, 64 << 10)
    assert counted["whole"] > 15 and counted["dropped"] > 300
    assert counted["evicted"] > 100_000 and counted["limbo"] > 5
    calls = [count for name, count in counted.items() if name.startswith("kind")]
    assert min(calls) >= 1 and len(calls) == 14


def test_of_several_processes_one_dies_at_any_step_and_the_others_go_on(tmp_path: Path) -> None:
    """Readers in each call that pins, lets go or asks; keepers in each call; and one who finds a dead one's lock."""
    counted = run_stepped(build_as_product(KILLING, tmp_path), 1)
    assert counted["kills"] > 250 and counted["owner_died"] > 200
    assert counted["undone"] > 20 and counted["torn"] > 30 and counted["whole"] > 150

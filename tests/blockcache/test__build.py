"""The build: what is fed to cffi, when nothing is done, how a compiler's refusal reads."""

import os
import subprocess
from pathlib import Path

import pytest

from blockcache import _build

FASTCACHE, ORDINARY, _ROWS, PIPELINE = _build.EXTENSIONS


def test_declarations_are_free_of_the_preprocessor_s_conditions() -> None:
    for extension in _build.EXTENSIONS:
        declared = extension.read_declarations()
        assert "#include" not in declared and "#if" not in declared
    assert (
        "fc_insert" in FASTCACHE.read_declarations()
        and "fc_units_take" not in FASTCACHE.read_declarations()
    )
    assert "po_scan_produce" in ORDINARY.read_declarations()
    assert (
        "fl_forward" in PIPELINE.read_declarations()
        and "po_scan_produce" not in PIPELINE.read_declarations()
    )


def test_an_extension_is_made_from_all_that_it_uses() -> None:
    assert {path.name for path in PIPELINE.sources} == {"pipeline.c", "produce_rows.c", "weight.c"}
    assert [folder.parent.name for folder in PIPELINE.folders] == ["produce", "protocol"]


def test_current_extensions_are_left_alone() -> None:
    before = [extension.path.stat().st_mtime_ns for extension in _build.EXTENSIONS]
    assert _build.build() == [extension.path for extension in _build.EXTENSIONS]
    assert [extension.path.stat().st_mtime_ns for extension in _build.EXTENSIONS] == before


def test_an_older_extension_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "ROOT", tmp_path)
    native = tmp_path / "blockcache" / "native"
    native.mkdir(parents=True)
    (native / "some.c").touch()
    assert not FASTCACHE.is_current()
    FASTCACHE.path.touch()
    os.utime(FASTCACHE.path, (2**33, 2**33))
    assert FASTCACHE.is_current()
    os.utime(FASTCACHE.path, (0, 0))
    assert not FASTCACHE.is_current()


def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(_build.BuildFailed, match="apt install gcc"):
        _build.find_compiler()


def test_a_warning_is_a_failure(tmp_path: Path) -> None:
    source = tmp_path / "bad.c"
    source.write_text("static int unused(void) { return 1; }\n")
    with pytest.raises(_build.BuildFailed, match="unused"):
        _build.run_compiler(
            [*_build.find_compiler(), *_build.STRICT, "-c", str(source), "-o", str(tmp_path / "o")]
        )


@pytest.mark.parametrize("extension", _build.EXTENSIONS, ids=lambda one: one.name)
def test_what_is_built_is_hardened(extension: _build.Extension) -> None:
    """An overrun of the stack ends the process, and what the loader has bound cannot be written over."""
    _build.build()
    told = subprocess.run(
        ["readelf", "--wide", "--dynamic", "--program-headers", "--dyn-syms", extension.path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "__stack_chk_fail" in told
    assert "GNU_RELRO" in told
    assert "BIND_NOW" in told
    assert "GNU_STACK" in told and " RWE " not in told


def test_a_copy_beyond_its_target_ends_the_process(tmp_path: Path) -> None:
    """Also where only the allocation tells its size (_FORTIFY_SOURCE=3)."""
    source, program = tmp_path / "bad.c", tmp_path / "bad"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n"
        "int main(int argc, char **argv) {\n"
        "    size_t room = (size_t)argc;\n"
        "    char *target = malloc(room);\n"
        "    memcpy(target, argv[0], room + 8);\n"
        "    return target[0] == argv[0][0];\n"
        "}\n"
    )
    compiler = _build.find_compiler()
    _build.run_compiler(
        [*compiler, *_build.STRICT, str(source), "-o", str(program), *_build.LINKING]
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert "buffer overflow detected" in done.stderr

"""The build: what is fed to cffi, when nothing is done, how a compiler's refusal reads."""

import os
from pathlib import Path

import pytest

from blockcache import _build


def test_declarations_are_free_of_the_preprocessor_s_conditions() -> None:
    declared = _build.read_declarations()
    assert "#include" not in declared and "#if" not in declared
    assert "fc_insert" in declared and "fc_units_take" not in declared


def test_a_current_extension_is_left_alone() -> None:
    before = _build.extension_path().stat().st_mtime_ns
    assert _build.build() == _build.extension_path()
    assert _build.extension_path().stat().st_mtime_ns == before


def test_an_older_extension_is_not_current(tmp_path: Path) -> None:
    old = tmp_path / "extension"
    assert not _build.is_current(old)
    old.touch()
    assert _build.is_current(old)
    os.utime(old, (0, 0))
    assert not _build.is_current(old)


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

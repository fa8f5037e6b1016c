"""The picture of the documents: written, small, and the one that the document shows."""

from pathlib import Path

import pytest

from bench.controller import PICTURE, SCENARIOS, main


def test_picture_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("settled") == len(SCENARIOS)
    manual = Path(__file__).parents[2] / "docs" / "throttle.md"
    assert [path.name for path in tmp_path.iterdir()] == [PICTURE]
    assert f"({PICTURE})" in manual.read_text()
    for path in (tmp_path / PICTURE, manual.parent / PICTURE):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert 1000 < path.stat().st_size < 100_000


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "OUT_DIR" in capsys.readouterr().err

"""The plots of the documents: written, small, and the ones that the documents show."""

from pathlib import Path

import pytest

from bench.controller import SCENARIOS, main


def test_plots_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("settled") == len(SCENARIOS)
    manual = Path(__file__).parents[2] / "docs" / "throttle.md"
    for name in SCENARIOS:
        plot = tmp_path / f"throttle-model-{name}.svg"
        assert 1000 < plot.stat().st_size < 60_000
        assert plot.name in manual.read_text()
        assert "<svg" in (manual.parent / plot.name).read_text()


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "OUT_DIR" in capsys.readouterr().err

"""The folder of a followed report belongs to one process and one version."""

import json
from pathlib import Path

import pytest

from spark_audit.follow import CannotFollow, hold


def test_one_process_follows_into_a_folder(tmp_path: Path) -> None:
    with (
        hold(tmp_path),
        pytest.raises(CannotFollow, match="another forebay audit --follow"),
        hold(tmp_path),
    ):
        pass
    with hold(tmp_path):
        pass


def test_lines_of_another_version_are_not_mixed_in(tmp_path: Path) -> None:
    with hold(tmp_path):
        pass
    (tmp_path / "form.json").write_text(json.dumps({"schemaVersion": 1, "layout": 1}))
    with (
        pytest.raises(CannotFollow, match="another version of the audit: remove it to begin anew"),
        hold(tmp_path),
    ):
        pass

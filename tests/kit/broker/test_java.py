"""A Java that is too old, or none, is an error that says what to install."""

from pathlib import Path

import pytest

from tests.kit.broker.java import JavaMissing, find_java, scan_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -X\njava version "1.8.0_392"', 8),
        ("Unable to locate a Java Runtime", 0),
    ],
)
def test_scan_version(text: str, version: int) -> None:
    assert scan_version(text) == version


@pytest.mark.parametrize("said", ['openjdk version \\"11.0.2\\"', None])
def test_unusable_java_says_what_to_install(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said:
        (tmp_path / "bin").mkdir()
        java = tmp_path / "bin" / "java"
        java.write_text(f'#!/bin/sh\necho "{said}" >&2\n')
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="apt-get install openjdk-17-jre-headless"):
        find_java.__wrapped__()

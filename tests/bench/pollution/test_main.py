"""The command's edges: what it says on a machine that cannot run it."""

import os
from pathlib import Path

import pytest

from bench.pollution.__main__ import (
    EXIT_FAILED,
    EXIT_UNFIT,
    build_parser,
    build_sizes,
    count_produced_s,
    main,
    sizes_of,
)
from bench.pollution.arms import ARMS, FOREBAY, PLAIN


def test_without_root_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--image-directory", str(tmp_path)]) == EXIT_UNFIT
    assert "root" in capsys.readouterr().err


def test_an_unknown_arm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--arms", "plain,magic"]) == EXIT_FAILED
    assert "magic" in capsys.readouterr().err


def test_arms_that_no_bar_judges_may_be_shorter() -> None:
    options = build_parser().parse_args(["--seconds", "60", "--other-seconds", "30"])
    sizes = build_sizes(options)
    seconds = {name: sizes_of(arm, options, sizes).polluted_s for name, arm in ARMS.items()}
    assert {name for name, polluted_s in seconds.items() if polluted_s == 60} == {PLAIN, FOREBAY}
    assert set(seconds.values()) == {60, 30}


def test_limit_is_named_on_a_limited_disk_only() -> None:
    for words, limited, named in (
        (["--name-limit"], False, False),
        (["--disk", "limited"], True, False),
        (["--disk", "limited", "--name-limit"], True, True),
    ):
        sizes = build_sizes(build_parser().parse_args(words))
        assert (sizes.limited, sizes.limit_named) == (limited, named)


def test_the_disk_is_as_large_as_the_arms_are_long() -> None:
    options = build_parser().parse_args(
        [
            "--rounds",
            "2",
            "--arms",
            "plain,no-lane",
            "--seconds",
            "60",
            "--quiet-seconds",
            "10",
            "--other-seconds",
            "30",
        ]
    )
    again = options.again * (10 + 60 + 25 + 12)
    assert options.again > 0
    assert (
        count_produced_s(options, build_sizes(options))
        == 2 * ((10 + 60 + 25 + 12) + (10 + 30)) + again
    )

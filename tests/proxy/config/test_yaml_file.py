"""Reading YAML: places, refusals and limits."""

from pathlib import Path

import pytest

from proxy.config.yaml_file import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_NODES,
    ConfigError,
    parse_yaml,
    read_yaml,
)


def refusal(data: bytes) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(data, "f.yaml")
    return caught.value.problems


def test_values_come_with_the_line_of_their_key() -> None:
    tree, places = parse_yaml(
        b"listeners:\n  - listen: a:1\n    upstream: b:2\ncache: {size: 1}\n", "f.yaml"
    )
    assert tree == {"listeners": [{"listen": "a:1", "upstream": "b:2"}], "cache": {"size": 1}}
    assert places["listeners", 0, "upstream"] == "f.yaml:3"
    assert places["cache", "size"] == "f.yaml:4"


def test_only_true_and_false_are_booleans() -> None:
    """YAML 1.2: `mode: off` is a word, not YAML 1.1's boolean."""
    tree, _ = parse_yaml(b"{a: off, b: on, c: no, d: yes, e: true, f: False, g: 'true'}", "f.yaml")
    assert tree == {
        "a": "off",
        "b": "on",
        "c": "no",
        "d": "yes",
        "e": True,
        "f": False,
        "g": "true",
    }


def test_anchors_serve_listeners_that_are_alike() -> None:
    text = b"listeners:\n  - &first {listen: a:1, upstream: b:2}\n  - {<<: *first, listen: a:3}\n"
    tree, _ = parse_yaml(text, "f.yaml")
    assert tree["listeners"][1] == {"listen": "a:3", "upstream": "b:2"}


def test_keys_that_stand_twice_are_all_named() -> None:
    problems = refusal(b"cache:\n  size: 1\n  size: 2\nlog: {}\nlog: {}\n")
    assert problems == (
        "size: stands twice; remove one (f.yaml:2 and f.yaml:3)",
        "log: stands twice; remove one (f.yaml:4 and f.yaml:5)",
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a: [1\nb: 2", "f.yaml:2: is not valid YAML"),
        (b"- 1", "must consist of keys and values"),
        (b"text", "must consist of keys and values"),
        (b"a: 1\n---\nb: 2", "is not valid YAML"),
        (
            b"a: !!python/object/apply:os.getcwd []",
            "is not valid YAML: could not determine a constructor",
        ),
        (b"a: \xff", "is not valid YAML"),
        (b"a: \x00", "is not valid YAML"),
        (b"? [1, 2]\n: 3", "is not valid YAML: found unhashable key"),
        (b"a: &a [*a]", "nested too deeply"),
        (b"a: 2024-99-99", "is not valid YAML"),
    ],
)
def test_unreadable_yaml_is_refused_in_one_sentence(data: bytes, said: str) -> None:
    (problem,) = refusal(data)
    assert said in problem


def test_an_empty_file_is_an_empty_configuration() -> None:
    assert parse_yaml(b"# nothing\n", "f.yaml") == ({}, {})


def test_depth_and_nodes_are_bounded() -> None:
    def nested(depth: int) -> bytes:
        return b"a: " + b"[" * (depth - 1) + b"1" + b"]" * (depth - 1)

    parse_yaml(nested(MAX_DEPTH), "f.yaml")
    assert "nested too deeply" in refusal(nested(MAX_DEPTH + 1))[0]
    parse_yaml(b"a: [" + b"1," * (MAX_NODES - 1) + b"]", "f.yaml")
    assert "too large" in refusal(b"a: [" + b"1," * MAX_NODES + b"]")[0]


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"a: 1".ljust(MAX_FILE_BYTES))
    assert read_yaml(path)[0] == {"a": 1}
    path.write_bytes(b"a: 1".ljust(MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "absent.yaml")

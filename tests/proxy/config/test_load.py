"""From file, environment and flags to one Config: precedence, sources, and all refusals at once."""

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from proxy.config.keys import EVERY, KEYS, SettingKey, environment_name
from proxy.config.load import Loaded, Setting, describe, explain, load, scan_environment
from proxy.config.memory import Memory
from proxy.config.model import MOST_WORKERS, Cache, Config
from proxy.config.processors import Processors, find_processors, plan_workers
from proxy.config.units import GIB, MIB, Address
from proxy.config.yaml_file import ConfigError

SMALL = (
    "listeners:\n  - listen: 127.0.0.1:0\n    upstream: 127.0.0.1:9092\ncache:\n  directory: ''\n"
)
MEMORY = Memory(4 * GIB, True, "/limit")


def load_text(
    directory: Path, text: str, environ: dict[str, str] | None = None, *flags: Setting
) -> Loaded:
    path = directory / "forebay.yaml"
    path.write_text(text)
    return load(path, environ or {}, flags, MEMORY)


def problems_of(
    directory: Path, text: str, environ: dict[str, str] | None = None, *flags: Setting
) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_text(directory, text, environ, *flags)
    return caught.value.problems


def test_smallest_file_gives_defaults_and_derived_size(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, SMALL)
    assert loaded.config.listeners[0].upstream == Address("127.0.0.1", 9092)
    assert loaded.config.cache == Cache(size_bytes=2 * GIB, directory="")
    assert loaded.choices == ("cache.size is 2GiB: half of the memory limit 4GiB (/limit)",)
    assert loaded.warnings == ()


def test_a_size_that_is_given_is_not_derived(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, SMALL + "  size: 64MiB\n")
    assert loaded.config.cache.size_bytes == 64 * MIB
    assert loaded.choices == ()


def test_flag_precedes_environment_file_and_default(tmp_path: Path) -> None:
    text = SMALL + "  size: 64MiB\n  holeWait: 1ms\n  confirmEvery: 2s\n"
    environ = {"FOREBAY_CACHE_SIZE": "65MiB", "FOREBAY_CACHE_HOLE_WAIT": "2ms", "PATH": "/bin"}
    loaded = load_text(tmp_path, text, environ, Setting(("cache", "size"), "66MiB", "--cache-size"))
    cache = loaded.config.cache
    assert (cache.size_bytes, cache.hole_wait_s, cache.confirm_every_s) == (66 * MIB, 0.002, 2.0)
    assert cache.authorize_every_s == 10.0
    sources = [
        loaded.sources.get(("cache", key))
        for key in ("size", "holeWait", "confirmEvery", "authorizeEvery")
    ]
    assert sources == ["--cache-size", "FOREBAY_CACHE_HOLE_WAIT", "forebay.yaml:8", None]


def test_the_environment_alone_is_enough() -> None:
    environ = {
        "FOREBAY_LISTENERS_0_LISTEN": ":0",
        "FOREBAY_LISTENERS_0_UPSTREAM": "broker:9092",
        "FOREBAY_LISTENERS_1_NAME": "second",
        "FOREBAY_LISTENERS_1_LISTEN": ":0",
        "FOREBAY_LISTENERS_1_UPSTREAM": "broker:9093",
        "FOREBAY_CACHE_MODE": "off",
        "FOREBAY_CACHE_DIRECTORY": "",
        "FOREBAY_LIMITS_MAX_CONNECTIONS": "7",
        "FOREBAY_PORT_9092_TCP": "tcp://10.0.0.1:9092",
    }
    config = load(None, environ, memory=MEMORY).config
    assert [listener.upstream.port for listener in config.listeners] == [9092, 9093]
    assert (config.cache.mode, config.cache.directory, config.limits.max_connections) == (
        "off",
        "",
        7,
    )


def test_null_empty_sections_and_empty_variables_are_unset(tmp_path: Path) -> None:
    text = SMALL + "  size: null\naccessLog:\n  directory: logs\nlimits:\n"
    loaded = load_text(tmp_path, text, {"FOREBAY_ACCESS_LOG_DIRECTORY": ""})
    assert loaded.config.access_log.directory is None
    assert loaded.config.cache.size_bytes == 2 * GIB


def test_all_errors_are_reported_with_their_places(tmp_path: Path) -> None:
    text = (
        "listeners:\n  - listen: 9092\n    upstrem: b:1\n  - 5\n"
        "cache:\n  size: 4KiB\n  confirm_every: 1s\nlog: 1\n"
    )
    environ = {
        "FOREBAY_CACHE_HOLE_WAIT": "5",
        "FOREBAY_CACHE_SIZ": "1",
        "FOREBAY_LISTENERS_5_NAME": "x",
    }
    assert set(problems_of(tmp_path, text, environ)) == {
        "FOREBAY_CACHE_SIZ: unknown environment variable; did you mean FOREBAY_CACHE_SIZE?",
        "FOREBAY_LISTENERS_5_NAME: there is no listeners[2]; count from 0",
        "listeners[0].listen: '9092' is not an address; write HOST:PORT, for example 127.0.0.1:9092 "
        "or [::1]:9092 (forebay.yaml:2)",
        "listeners[0].upstream: is missing; set it, or FOREBAY_LISTENERS_0_UPSTREAM",
        "listeners[0].upstrem: unknown key; did you mean upstream? (forebay.yaml:3)",
        "listeners[1]: must be a section with keys below it, is '5' (forebay.yaml:4)",
        "cache.size: must be at least 16MiB, is 4KiB (forebay.yaml:6)",
        "cache.confirm_every: unknown key; did you mean confirmEvery? (forebay.yaml:7)",
        "cache.holeWait: '5' is not a duration; write a number with its unit, for example 250ms, 30s "
        "or 1h30m (FOREBAY_CACHE_HOLE_WAIT)",
        "log: must be a section with keys below it, is '1' (forebay.yaml:8)",
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "cache: {directory: 1}",
            "cache.directory: must be text; put it in quotes, is '1' (forebay.yaml:4)",
        ),
        (
            "isolation: {enabled: 2}",
            "isolation.enabled: must be true or false, is '2' (forebay.yaml:4)",
        ),
        (
            "cache: {mode: of}",
            "cache.mode: must be 'serve', 'observe' or 'off', is 'of' (forebay.yaml:4)",
        ),
        (
            "cache: {confirmEvery: 1h}",
            "cache.confirmEvery: must be at most 30s, is 1h (forebay.yaml:4)",
        ),
        (
            "limits: {maxConnections: 0}",
            "limits.maxConnections: must be at least 1, is 0 (forebay.yaml:4)",
        ),
        (
            "limits: {maxConnections: x}",
            "limits.maxConnections: must be a whole number, is 'x' (forebay.yaml:4)",
        ),
        (
            "log: {level: loud}",
            "log.level: must be 'debug', 'info', 'warning' or 'error', is 'loud' (forebay.yaml:4)",
        ),
        ("log: [1]", "log: must be a section with keys below it (forebay.yaml:4)"),
        (
            "accessLog: {directory: ''}",
            "accessLog.directory: must not be empty; remove it to unset it, is '' (forebay.yaml:4)",
        ),
        (
            "cache: {verifyRatio: much}",
            "cache.verifyRatio: must be a number, is 'much' (forebay.yaml:4)",
        ),
        (
            "cache: {verifyRatio: [1]}",
            "cache.verifyRatio: must be a number (forebay.yaml:4)",
        ),
        (
            "limits: {maxConnections: .inf}",
            "limits.maxConnections: must be a finite number, is 'inf' (forebay.yaml:4)",
        ),
        (
            "limits: {maxConnections: true}",
            "limits.maxConnections: 'true' is not a number (forebay.yaml:4)",
        ),
        (
            'cache: {directory: "\\uD800"}',
            "cache.directory: must be UTF-8 text, is '\\ud800' (forebay.yaml:4)",
        ),
        ("7: 8", "[7]: unknown key; remove it (docs/configuration.md lists all keys)"),
    ],
)
def test_each_kind_of_refusal_says_what_to_change(tmp_path: Path, line: str, said: str) -> None:
    text = "listeners:\n  - listen: 127.0.0.1:0\n    upstream: b:1\n" + line
    assert problems_of(tmp_path, text) == (said,)


ODD_VALUES = [
    True,
    -1,
    10**400,
    0.5,
    float("inf"),
    float("nan"),
    "",
    "x" * 5000,
    "9" * 5000,
    " \ud800",
    b"\xff",
]
ODD_VALUES += [[], [1], {}, {"a": 1}, datetime.date(2020, 1, 1), {1, 2}]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: environment_name(key.pattern))
def test_no_value_of_any_key_is_refused_in_pydantics_words(key: SettingKey) -> None:
    for value in ODD_VALUES:
        tree: Any = value
        for part in reversed(key.pattern):
            tree = [tree] if part == EVERY else {part: tree}
        try:
            Config.model_validate(tree, by_alias=True, by_name=False)
        except ValidationError as refusal:
            said = "; ".join(explain(refusal, {}))
            assert not [error["msg"] for error in refusal.errors() if error["msg"] in said]
            assert "is not a value of this key" not in said and len(said) < 1000


@pytest.mark.parametrize("text", ["", "listeners: []", "listeners:"])
def test_missing_listener_error_names_the_flags(tmp_path: Path, text: str) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("listeners: name at least one listener")
    assert "--upstream" in problem


def test_listener_outside_a_list_is_refused(tmp_path: Path) -> None:
    text = "listeners:\n  listen: a:1\n"
    (problem,) = problems_of(tmp_path, text, {"FOREBAY_LISTENERS_0_UPSTREAM": "b:2"})
    assert problem == "listeners: must be a list; begin each item with a dash (forebay.yaml:1)"


def test_misplaced_secret_is_not_repeated(tmp_path: Path) -> None:
    text = SMALL.replace(
        "cache:", "    upstreamCredentials: {mechanism: PLAIN, password: hunter2}\ncache:"
    )
    problems = problems_of(
        tmp_path, text, {"FOREBAY_LISTENERS_0_UPSTREAM_CREDENTIALS_PASSWORD": "hunter2"}
    )
    assert "did you mean passwordFile?" in " ".join(problems)
    assert "did you mean FOREBAY_LISTENERS_0_UPSTREAM_CREDENTIALS_PASSWORD_FILE?" in " ".join(
        problems
    )
    assert "hunter2" not in " ".join(problems)


def test_rules_over_several_keys_are_asked_too(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, SMALL + "  size: 5GiB\n")
    assert problem.startswith("cache.size: 5GiB is more than the memory there is, 4GiB (/limit)")


def test_description_loads_to_the_same_config(
    tmp_path: Path,
) -> None:
    loaded = load_text(tmp_path, SMALL, {"FOREBAY_LOG_LEVEL": "debug"})
    text = describe(loaded)
    again = Config.model_validate(yaml.safe_load(text), by_alias=True, by_name=False)
    assert again.model_dump() == loaded.config.model_dump()
    lines = {
        line.split(":")[0].strip(" -"): line.partition("  # ")[2] for line in text.splitlines()
    }
    assert lines["upstream"] == "forebay.yaml:3"
    assert lines["level"] == "FOREBAY_LOG_LEVEL"
    assert lines["size"] == "derived: half of the memory limit 4GiB (/limit)"
    assert lines["holeWait"] == "default"


ODD_TEXTS = [
    "on",
    "null",
    "1.5",
    "0x1F",
    "1e3",
    'say "yes"',
    "back\\slash*",
    "tab\t",
    "\u00e9\u2028",
    "# no",
]


def test_words_that_yaml_1_1_takes_for_booleans_mean_what_they_say(tmp_path: Path) -> None:
    text = (
        SMALL + "  mode: off\n  keepArena: off\nthrottle: {enabled: no}\nisolation: {enabled: on}\n"
    )
    config = load_text(tmp_path, text).config
    assert config.cache.mode == "off"
    assert not (config.cache.keep_arena or config.throttle.enabled) and config.isolation.enabled
    (problem,) = problems_of(tmp_path, SMALL + "  mode: false\n")
    assert problem == "cache.mode: must be 'serve', 'observe' or 'off', is 'false' (forebay.yaml:6)"


@pytest.mark.parametrize("mode", ["serve", "observe", "off"])
def test_what_check_prints_is_a_file_of_the_same_configuration(tmp_path: Path, mode: str) -> None:
    """Explicit defaults, words that YAML reads otherwise, quotes and line ends included."""
    quotas = [{"pattern": text, "inFlight": "1MiB"} for text in ODD_TEXTS]
    tree = {
        "listeners": [{"name": "no", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9092"}],
        "cache": {"mode": mode, "size": 16 * MIB + 1, "directory": "", "verifyRatio": 0.00001},
        "throttle": {"disks": [{"device": "1"}], "weights": [{"clientId": "*", "weight": 2}]},
        "isolation": {"topicQuotas": quotas},
    }
    loaded = load_text(tmp_path, yaml.safe_dump(tree))
    printed = describe(loaded)
    assert load_text(tmp_path, printed).config == loaded.config
    assert yaml.safe_load(printed)["cache"]["mode"] == mode, "also by a reader that knows YAML 1.1"
    assert yaml.safe_load(printed)["throttle"]["target"] == 0.6


def test_settings_come_in_the_order_of_their_indexes() -> None:
    environ = {f"FOREBAY_LISTENERS_{index}_NAME": "n" for index in (10, 2, 0)}
    settings, problems = scan_environment(environ)
    assert [setting.path[1] for setting in settings] == [0, 2, 10]
    assert problems == []


@pytest.mark.parametrize(
    ("processors", "workers"), [(1, 1), (2, 1), (3, 2), (16, 15), (32, 31), (64, 31)]
)
def test_auto_leaves_a_processor_to_the_keeper(
    tmp_path: Path, processors: int, workers: int
) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text("workers: auto\n" + SMALL + "  size: 64MiB\n")
    loaded = load(path, {}, (), MEMORY, Processors(processors, "processors of a test"))
    assert loaded.config.workers == workers
    reason = f"{processors} processors of a test, less one for the keeper"
    assert loaded.choices == (f"workers is {workers}: {reason}",)
    assert f"workers: {workers}" in describe(loaded)
    assert f"# derived: {reason}" in describe(loaded)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("0", "must be at least 1, is 0"),
        ("32", "must be at most 31, is 32"),
        ("all", "must be a whole number, is 'all'"),
        ("true", "'true' is not a number"),
    ],
)
def test_other_numbers_of_workers_are_refused(tmp_path: Path, given: str, says: str) -> None:
    (problem,) = problems_of(tmp_path, f"workers: {given}\n" + SMALL)
    assert problem == f"workers: {says} (forebay.yaml:1)"


def test_workers_are_one_by_default_and_a_variable_sets_them(tmp_path: Path) -> None:
    assert load_text(tmp_path, SMALL).config.workers == 1
    assert load_text(tmp_path, SMALL, {"FOREBAY_WORKERS": "3"}).config.workers == 3
    derived = load_text(tmp_path, SMALL, {"FOREBAY_WORKERS": "auto"})
    assert derived.config.workers == plan_workers(find_processors(), MOST_WORKERS).count

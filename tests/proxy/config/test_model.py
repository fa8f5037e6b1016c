"""The models: names, units, limits; a Config is immutable."""

import typing

import pytest
from pydantic import ValidationError

from proxy.config.keys import KEYS, SettingKey, path_text
from proxy.config.model import Cache, Config, Limits, ListenerConfig, ListenerTls, UpstreamTls
from proxy.config.section import key_of
from proxy.config.units import MIB, Address

BOUNDED = [key for key in KEYS if any(hasattr(item, "ge") for item in key.field.metadata)]


def small() -> ListenerConfig:
    return ListenerConfig(listen=Address("127.0.0.1", 0), upstream=Address("127.0.0.1", 9092))


def unit_of(key: SettingKey) -> str:
    """The unit that a field's type reads, seen from how it writes the number 1."""
    annotation = typing.get_type_hints(key.section, include_extras=True)[key.attribute]
    serializers = [item.func for item in typing.get_args(annotation)[1:] if hasattr(item, "func")]
    names = {getattr(function, "__name__", "") for function in serializers}
    return "_s" if "format_duration" in names else "_bytes" if "format_size" in names else ""


@pytest.mark.parametrize(
    ("attribute", "key"),
    [
        ("size_bytes", "size"),
        ("confirm_every_s", "confirmEvery"),
        ("listeners", "listeners"),
        ("ca_file", "caFile"),
    ],
)
def test_key_is_the_camel_case_attribute_without_unit(attribute: str, key: str) -> None:
    assert key_of(attribute) == key


@pytest.mark.parametrize("key", KEYS, ids=lambda key: path_text(key.pattern))
def test_every_attribute_has_unit_and_description(key: SettingKey) -> None:
    suffix = next((suffix for suffix in ("_bytes", "_s") if key.attribute.endswith(suffix)), "")
    assert suffix == unit_of(key)
    assert key.field.description
    assert key.field.description.endswith(".")


@pytest.mark.parametrize("key", BOUNDED, ids=lambda key: path_text(key.pattern))
def test_every_number_is_accepted_within_its_bounds(key: SettingKey) -> None:
    least = next(item.ge for item in key.field.metadata if hasattr(item, "ge"))
    most = next(item.le for item in key.field.metadata if hasattr(item, "le"))
    unit = "us" if key.attribute.endswith("_s") else ""
    is_share = key.field.annotation is float and not unit
    scale = 1_000_000 if unit else 1_000 if is_share else 1
    others = {
        key_of(name): [{"listen": ":0", "upstream": "b:2"}] if name == "listeners" else "x"
        for name, field in key.section.model_fields.items()
        if field.is_required()
    }

    def given(value: float) -> dict[str, object]:
        text = str(value) if is_share else f"{round(value * scale)}{unit}"
        return {**others, key.pattern[-1]: text}

    for value in (least, most):
        key.section.model_validate(given(value))
    for value in (least - 1 / scale, most + 1 / scale):
        with pytest.raises(ValidationError):
            key.section.model_validate(given(value))


def test_counts_are_numbers_and_not_truths() -> None:
    with pytest.raises(ValidationError, match="not a number"):
        Limits(max_connections=True)


def test_a_config_cannot_be_changed_nor_extended() -> None:
    config = Config(listeners=(small(),))
    with pytest.raises(ValidationError, match="frozen"):
        config.cache = Cache()
    with pytest.raises(ValidationError, match="Extra inputs"):
        Cache.model_validate({"size": "64MiB", "sise": 1})


def test_code_uses_attributes_files_use_keys() -> None:
    cache = Cache(size_bytes=64 * MIB, confirm_every_s="250ms")  # type: ignore[arg-type]
    assert (cache.size_bytes, cache.confirm_every_s) == (64 * MIB, 0.25)
    dump = cache.model_dump(mode="json")
    assert (dump["size"], dump["confirmEvery"]) == ("64MiB", "250ms")
    assert (
        Config(listeners=(small(),)).model_dump(mode="json")["listeners"][0]["listen"]
        == "127.0.0.1:0"
    )


def test_identity_is_shared_with_client_certificates() -> None:
    tls = ListenerTls(certificate_file="c", key_file="k")
    assert not small().model_copy(update={"tls": tls}).shares_identity
    required = tls.model_copy(update={"client_auth": "required"})
    assert small().model_copy(update={"tls": required}).shares_identity
    upstream_tls = UpstreamTls(enabled=True, certificate_file="c", key_file="k")
    assert small().model_copy(update={"upstream_tls": upstream_tls}).shares_identity


def test_listeners_number_1_to_64() -> None:
    Config(listeners=(small(),) * 64)
    for count in (0, 65):
        with pytest.raises(ValidationError, match="item"):
            Config(listeners=(small(),) * count)

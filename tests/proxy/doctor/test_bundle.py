"""The bundle holds no secret of the configuration, however a member writes it."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.keys import KEYS, path_text
from proxy.config.model import Config
from proxy.doctor.bundle import (
    LARGEST_MEMBER_BYTES,
    REMOVED,
    SECRET_KEYS,
    list_secret_files,
    read_secrets,
    remove_secrets,
    write_bundle,
)
from tests.kit.broker.certificates import write_certificates

PASSWORD = "p\"ass\\wörd'1"
SHOWN = ("certificateFile", "caFile", "clientCaFile", "crlFile", "diskstatsFile", "pressureFile")
"""Keys of files that hold no secret."""


def build_config(*listeners: dict[str, Any], **sections: Any) -> Config:
    plain = {"listen": ":9092", "upstream": "127.0.0.1:1"}
    entries = [plain | {"name": f"l{n}"} | one for n, one in enumerate(listeners)]
    tree = {"listeners": entries} | sections
    return Config.model_validate(tree, by_alias=True, by_name=False)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """With each kind of secret that there is."""
    tls = write_certificates(tmp_path)
    for name, text in (("password", PASSWORD), ("token", "bearer-token"), ("admin", "admin-token")):
        (tmp_path / name).write_text(text + "\n")
    files = {"certificateFile": str(tls.server.certificate), "keyFile": str(tls.server.key)}
    client = {"certificateFile": str(tls.client.certificate), "keyFile": str(tls.client.key)}
    plain = {"mechanism": "PLAIN", "username": "forebay", "passwordFile": f"{tmp_path}/password"}
    oauth = {"mechanism": "OAUTHBEARER", "tokenFile": f"{tmp_path}/token"}
    return build_config(
        {"tls": files, "upstreamCredentials": plain},
        {"upstreamTls": {"enabled": True, **client}, "upstreamCredentials": oauth},
        admin={"listen": ":9190", "tokenFile": f"{tmp_path}/admin", "tls": files},
    )


def test_every_key_of_a_file_is_known_as_secret_or_not() -> None:
    named = {path_text(key.pattern).rpartition(".")[2] for key in KEYS}
    files = {name for name in named if name.endswith("File")}
    assert files == {*SECRET_KEYS, *SHOWN}


def test_every_file_that_holds_a_secret_is_found(config: Config) -> None:
    names = sorted(Path(path).name for path in list_secret_files(config))
    assert names == ["admin", "broker.key", "broker.key", "client.key", "password", "token"]


def read_members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_no_secret_is_in_it(config: Config, tmp_path: Path) -> None:
    files = {Path(path): Path(path).read_text() for path in list_secret_files(config)}
    members = {
        "text": "\n".join(files.values()),
        "json.txt": json.dumps(list(files.values())),
        "python.txt": repr([text.strip() for text in files.values()]),
    }
    bundle = tmp_path / "support.tar.gz"
    names = write_bundle(bundle, members, read_secrets(config))
    assert names == [f"support/{name}" for name in members]
    for name, text in read_members(bundle).items():
        assert REMOVED in text, name
        for content in files.values():
            for line in content.splitlines():
                written = (line, json.dumps(line)[1:-1], repr(line)[1:-1])
                assert line.startswith("-----") or not any(one in text for one in written)


@given(st.text(min_size=4, max_size=40).filter(lambda text: text.strip() == text))
def test_any_secret_is_removed_from_any_member(secret: str) -> None:
    texts = [secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]]
    ordered = sorted(set(texts), key=len, reverse=True)
    for text in texts:
        assert remove_secrets(f"before {text} after", ordered) == f"before {REMOVED} after"


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "support.tar.gz"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        write_bundle(path, {"a": "b"}, [])
    assert path.read_text() == "precious"


def test_only_its_owner_reads_it_and_members_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "support.tar.gz"
    write_bundle(path, {"large": "x" * (LARGEST_MEMBER_BYTES + 1)}, [])
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_members(path)["support/large"]) == LARGEST_MEMBER_BYTES


def test_secrets_that_cannot_be_read_are_no_failure() -> None:
    own = {"mechanism": "PLAIN", "username": "u", "passwordFile": "/nowhere"}
    assert read_secrets(build_config({"upstreamCredentials": own})) == []

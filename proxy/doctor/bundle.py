"""The bundle for support: one file with what a helper asks for, and no secret.

Owns its members, their limits and the removal of secrets. Must not know what they mean. Invariants:
* the configuration holds no secrets but names files that do; their content is never a member, and is removed from all
  members wherever it stands, also as JSON or Python writes it.
* an existing file is not overwritten; others than its owner may not read the new one.
* a member has at most LARGEST_MEMBER_BYTES, cut at the end.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.config.check import LARGEST_SECRET_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from proxy.config.model import Config

SECRET_KEYS = ("passwordFile", "tokenFile", "keyFile")
"""Keys, anywhere in the configuration, of files whose content is secret."""
LARGEST_MEMBER_BYTES = 8 << 20
REMOVED = "<removed>"
SHORTEST_SECRET = 4
"""A shorter one cannot be told from other text."""


def list_secret_files(config: Config) -> Iterator[str]:
    """All files of the configuration whose content is secret."""
    waiting: list[Any] = [config.model_dump(mode="json", by_alias=True)]
    while waiting:
        node = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                waiting.append(value)
            elif key in SECRET_KEYS and value:
                yield str(value)


def read_secrets(config: Config) -> list[str]:
    """The texts to remove, the longest first: secrets, each line of a key, and what JSON and Python make of them."""
    found: set[str] = set()
    for path in list_secret_files(config):
        with contextlib.suppress(OSError), Path(path).open("rb") as file:
            text = file.read(LARGEST_SECRET_BYTES).decode(errors="replace")
            pieces = {text, *text.splitlines()}
            found |= {one.strip() for one in pieces if not one.startswith("-----")}
    written = {form for one in found for form in (one, json.dumps(one)[1:-1], repr(one)[1:-1])}
    return sorted((one for one in written if len(one) >= SHORTEST_SECRET), key=len, reverse=True)


def remove_secrets(text: str, secrets: list[str]) -> str:
    """The text with REMOVED in place of each secret."""
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    return text


def write_bundle(path: Path, members: Mapping[str, str], secrets: list[str]) -> list[str]:
    """Write the members into a new file; returns their names in it. Raises OSError, FileExistsError included."""
    folder = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    path.touch(mode=0o600, exist_ok=False)
    names = []
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in members.items():
            data = remove_secrets(text, secrets).encode(errors="replace")[:LARGEST_MEMBER_BYTES]
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(data))
            names.append(member.name)
    return names

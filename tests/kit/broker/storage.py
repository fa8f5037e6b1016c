"""The storage of a test broker, formatted as Kafka's StorageTool does it.

Owns the tool's checkpoints, kept beside the version's jars: the tool is a JVM, and runs once for each kind of storage
and user. Must not know what the records of the checkpoint say. Invariant: a copy differs from the tool's own files in
the ids of meta.properties alone.
"""

import hashlib
import os
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.kit.broker.jars import kafka_jars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHECKPOINT, META = "bootstrap.checkpoint", "meta.properties"
FORMATTING = ("controller.", "inter.broker.", "log.dir", "metadata.", "process.", "unstable.")
"""Beginnings of the settings that the tool may read; the others do not change what it writes."""


class Kind(NamedTuple):
    """All that decides which records the tool writes: the version, settings of FORMATTING, the SCRAM users."""

    version: str
    overrides: tuple[tuple[str, str], ...]
    scram: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Where its checkpoint is kept, or will be. Raises JavaMissing, FetchFailed."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:12]
        return kafka_jars(self.version) / f"formatted-{digest}"


def build_kind(version: str, overrides: "Mapping[str, object]", scram: "Sequence[str]") -> Kind:
    """The kind of a cluster with these overrides and arguments of StorageTool."""
    read = sorted((name, str(value)) for name, value in overrides.items() if is_read(name))
    return Kind(version, tuple(read), tuple(scram))


def is_read(name: str) -> bool:
    """Whether the tool may read this setting."""
    return name.startswith(FORMATTING)


def build_id() -> str:
    """A random id as Kafka writes it (org.apache.kafka.common.Uuid): it begins with no dash."""
    while (text := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def keep_formatted(kind: Kind, log_dir: Path) -> None:
    """Keep what the tool has written into `log_dir`; nothing where overrides name other directories."""
    path = log_dir / CHECKPOINT
    if path.exists():
        staging = kind.path.with_suffix(f".{os.getpid()}")
        staging.write_bytes(path.read_bytes())
        staging.rename(kind.path)


def write_formatted(kind: Kind, log_dir: Path, cluster_id: str, node_id: int) -> bool:
    """Format `log_dir` as the tool did one of this kind; False, and nothing written, where it has formatted none."""
    try:
        checkpoint = kind.path.read_bytes()
    except FileNotFoundError:
        return False
    log_dir.mkdir(parents=True)
    (log_dir / CHECKPOINT).write_bytes(checkpoint)
    ids = {"cluster.id": cluster_id, "directory.id": build_id(), "node.id": node_id, "version": 1}
    (log_dir / META).write_text("".join(f"{name}={value}\n" for name, value in ids.items()))
    return True

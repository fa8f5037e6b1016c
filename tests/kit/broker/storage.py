"""What Kafka's StorageTool writes into a log directory, written again for other nodes and clusters.

Owns the copies of this process: the tool is a JVM, and runs once for each kind of cluster. Must not know what the
records of the checkpoint say. Invariant: a copy differs from the tool's own files in the ids of meta.properties alone.
"""

import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import NamedTuple

CHECKPOINT, META = "bootstrap.checkpoint", "meta.properties"


class Kind(NamedTuple):
    """All that decides which records the tool writes: the version, the cluster's overrides, the SCRAM users."""

    version: str
    overrides: tuple[tuple[str, str], ...]
    scram: tuple[str, ...]


_checkpoints: dict[Kind, bytes] = {}


def build_id() -> str:
    """A random id as Kafka writes it (org.apache.kafka.common.Uuid): it begins with no dash."""
    while (text := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def keep_formatted(kind: Kind, log_dir: Path) -> None:
    """Keep what the tool has written into `log_dir`; nothing where overrides name other directories."""
    path = log_dir / CHECKPOINT
    if path.exists():
        _checkpoints[kind] = path.read_bytes()


def write_formatted(kind: Kind, log_dir: Path, cluster_id: str, node_id: int) -> bool:
    """Format `log_dir` as the tool did one of this kind; False, and nothing written, where it has formatted none."""
    checkpoint = _checkpoints.get(kind)
    if checkpoint is None:
        return False
    log_dir.mkdir(parents=True)
    (log_dir / CHECKPOINT).write_bytes(checkpoint)
    ids = {"cluster.id": cluster_id, "directory.id": build_id(), "node.id": node_id, "version": 1}
    (log_dir / META).write_text("".join(f"{name}={value}\n" for name, value in ids.items()))
    return True

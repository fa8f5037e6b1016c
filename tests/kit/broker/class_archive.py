"""A shared archive of Kafka's classes for each version: a JVM that maps it starts in less than half the time.

Owns where the archive lies (beside the version's jars, named after the Java that wrote it) and the JVM's flags
(application class-data sharing, JEP 350). Must not know who writes it. Invariant: an absent archive costs time alone.
"""

import functools
import hashlib
from pathlib import Path

from tests.kit.broker.jars import kafka_jars
from tests.kit.broker.java import find_java, print_version


@functools.cache
def archive_path(version: str) -> Path:
    """Where a version's archive is, or will be. Raises JavaMissing, FetchFailed."""
    java = hashlib.sha256(print_version(find_java()).encode()).hexdigest()[:12]
    return kafka_jars(version) / f"classes-{java}.jsa"


def share_classes(version: str) -> list[str]:
    """The JVM's flags that map the archive; none where it is absent. Raises JavaMissing, FetchFailed."""
    path = archive_path(version)
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:disable"] if path.exists() else []

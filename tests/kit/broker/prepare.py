"""All that tests and demo need of Kafka, once for a user: `python -m tests.kit.broker.prepare`, or `make tools`.

Owns the order: jars are fetched, then a broker of each version writes the archive of its classes as it ends.
"""

import fcntl
import os
import sys

from tests.kit.broker.class_archive import archive_path
from tests.kit.broker.jars import VERSIONS, FetchFailed
from tests.kit.broker.java import JavaMissing
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.process import JVM_FLAGS

WRITE_TIMEOUT_S = 180.0


def write_archive(version: str) -> None:
    """Fetch the jars and write the archive, where absent; a JVM that does not come to write one costs time alone.

    Raises FetchFailed, JavaMissing, BrokerFailed.
    """
    path = archive_path(version)
    with path.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if path.exists():
            return
        staging = path.with_suffix(f".{os.getpid()}")
        flags = (*JVM_FLAGS, f"-XX:ArchiveClassesAtExit={staging}")
        with KafkaCluster(version=version, jvm_flags=flags) as broker:
            named = ("--bootstrap-server", broker.direct, "--create", "--topic", "any")
            broker.tool("org.apache.kafka.tools.TopicCommand", *named)
            is_whole = broker.stop(gracefully=True, timeout_s=WRITE_TIMEOUT_S)
        if is_whole and staging.exists():
            staging.rename(path)
        staging.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        for pinned in VERSIONS:
            write_archive(pinned)
    except (FetchFailed, JavaMissing) as error:
        sys.exit(str(error))

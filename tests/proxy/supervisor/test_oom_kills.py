"""The kernel's count of OOM kills, read below a prepared root."""

from pathlib import Path

import pytest

from proxy.supervisor.oom_kills import count_oom_kills
from tests.proxy.config.test_memory import build_root

V2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 1\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        pytest.param(
            [
                ("proc/self/cgroup", "0::/pod/forebay\n"),
                ("sys/fs/cgroup/pod/forebay/memory.events", V2),
                ("sys/fs/cgroup/pod/memory.events", V2.replace("3", "9")),
            ],
            3,
            id="v2: the nearest",
        ),
        pytest.param(
            [("proc/self/cgroup", "0::/../pod\n"), ("sys/fs/cgroup/memory.events", V2)],
            3,
            id="v2: a container's mount",
        ),
        pytest.param(
            [
                ("proc/self/cgroup", "0::/\n4:cpu,memory:/docker/1\n"),
                ("sys/fs/cgroup/memory/memory.oom_control", V1),
            ],
            2,
            id="v1",
        ),
        pytest.param(
            [
                ("proc/self/cgroup", "4:memory:/\n"),
                ("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n"),
            ],
            0,
            id="v1 before Linux 4.13",
        ),
        pytest.param([], 0, id="nothing tells"),
    ],
)
def test_the_nearest_cgroup_that_tells_counts(
    tmp_path: Path, files: list[tuple[str, str]], kills: int
) -> None:
    assert count_oom_kills(build_root(tmp_path, *files)) == kills


def test_this_machine_is_read() -> None:
    assert count_oom_kills() >= 0

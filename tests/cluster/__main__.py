"""The cluster by hand. [process]

python -m tests.cluster build                 fill the cache
python -m tests.cluster up [--no-node]        a cluster, with all images loaded
python -m tests.cluster kubectl|helm WORD...  ask it
python -m tests.cluster exec COMMAND...       run something where pods and Services are reached
python -m tests.cluster down                  end it
"""

import os
import subprocess
import sys
import time

from tests.cluster import build, images
from tests.cluster.cluster import Cluster, find_obstacle
from tests.cluster.layout import ClusterError, State, find_helm, find_image
from tests.cluster.programs import build_kubectl


def fill_cache(has_node: bool = True) -> None:
    """Build what is missing, and say how long each part took."""
    parts = [build.build_kube, build.build_helm]
    if has_node:
        parts += [build.unpack_packages, images.build_fixed_images, build_forebay]
    missing = build.list_missing()
    if missing:
        raise ClusterError("\n".join(missing))
    with build.filling_cache():
        for part in parts:
            begun = time.monotonic()
            part()
            print(f"{part.__name__}: {time.monotonic() - begun:.0f} s", flush=True)
        if not os.environ.get("KEEP_GO_CACHE"):
            build.drop_compiled()


def build_forebay() -> None:
    """Forebay's image of this work tree."""
    images.build_forebay_image(images.find_tag())


def start_loaded(cluster: Cluster) -> None:
    """Start a cluster and give its node all images."""
    cluster.up()
    if cluster.has_node:
        load_images(cluster)


def load_images(cluster: Cluster) -> None:
    """Give the node the broker's image, and Forebay's of this work tree, unless it has them."""
    held = cluster.run("ctr", "-n", "k8s.io", "images", "ls", "-q").split()
    if images.KAFKA not in held:
        cluster.load(find_image(images.KAFKA_ARCHIVE))
    tag = images.find_tag()
    if f"{images.FOREBAY}:{tag}" not in held:
        cluster.load(find_image(f"forebay-{tag}"))


def main(words: list[str]) -> int:
    """Run one command; its exit code."""
    command, rest = (words[0] if words else "", words[1:])
    state = State.default()
    cluster = Cluster(state, has_node=(state.directory / "pid/first").exists())
    if command == "build":
        obstacle = "" if "--no-node" in rest else find_obstacle()
        if obstacle:
            print(f"no node here: {obstacle}; its tests are skipped, `make apiserver` needs none")
        fill_cache(has_node="--no-node" not in rest and not obstacle)
    elif command == "up":
        cluster.has_node = "--no-node" not in rest
        obstacle = find_obstacle() if cluster.has_node else ""
        if obstacle:
            raise ClusterError(obstacle)
        start_loaded(cluster)
        print(f"KUBECONFIG={state.kubeconfig}")
    elif command == "down":
        cluster.down()
    elif command in ("kubectl", "helm", "exec"):
        begin = build_kubectl(state)
        if command == "helm":
            begin = [find_helm(), "--kubeconfig", state.kubeconfig]
        elif command == "exec":
            begin = []
        return subprocess.run(cluster.enter([*begin, *rest]), check=False).returncode
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        sys.exit(f"cluster: {error}")

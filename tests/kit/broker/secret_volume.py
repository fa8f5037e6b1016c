"""A volume of a Kubernetes Secret: files that are swapped by one rename of a link, as the kubelet does
(pkg/volume/util/atomic_writer.go).

Owns the directory's layout. Must not know what the files hold.
"""

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class SecretVolume:
    """`directory` holds links to `..data/NAME`, and `..data` is a link to the files of the last `write`."""

    def __init__(self, directory: "Path") -> None:
        directory.mkdir()
        self.directory = directory
        self._numbers = itertools.count()

    def path(self, name: str) -> str:
        """Where readers find a file."""
        return str(self.directory / name)

    def write(self, files: "Mapping[str, Path]") -> None:
        """Put copies of `files` in place of all former ones, at once."""
        fresh = self.directory / f"..{next(self._numbers)}"
        fresh.mkdir()
        for name, source in files.items():
            (fresh / name).write_bytes(source.read_bytes())
            link = self.directory / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        swapped = self.directory / "..data_tmp"
        swapped.symlink_to(fresh.name)
        swapped.rename(self.directory / "..data")

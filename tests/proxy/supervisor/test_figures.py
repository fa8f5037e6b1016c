"""What the supervisor writes is what a worker of any build reads."""

import os

import pytest

from proxy.supervisor.figures import FIGURES, LABELS, PIPES, UPGRADES, Figures


def test_a_worker_reads_by_the_names_that_came_with_the_page() -> None:
    written = Figures(names=[("forebay_new_total",), *FIGURES])
    read = Figures(os.dup(written.fd), written.names)
    written["forebay_new_total",] = 1
    written[PIPES,] = 2
    written[UPGRADES, "failed"] += 3
    found = dict(read.read())
    assert (found["forebay_new_total",], found[PIPES,], found[UPGRADES, "failed"]) == (1, 2, 3)
    assert sum(found.values()) == 6
    with pytest.raises(KeyError):
        read["forebay_newer_total",]
    for one in (written, read):
        one.close()


def test_each_name_has_one_place_and_its_label() -> None:
    assert len(set(FIGURES)) == len(FIGURES)
    assert all((len(name) == 2) == (name[0] in LABELS) for name in FIGURES)

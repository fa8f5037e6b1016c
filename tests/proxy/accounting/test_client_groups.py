"""The group of a connection: what it named itself, or what its client has named on another connection."""

from __future__ import annotations

import pytest

from metrics.access_log import MAX_TEXT_CHARS
from proxy.accounting.client_groups import ClientGroups


class Connection:
    def __init__(self, host: str = "10.0.0.1", client_id: str | None = "billing") -> None:
        self.host, self.client_id = host, client_id
        self.group: str | None = None

    def note_group(self, group: str | None) -> None:
        self.group = group


def connect(groups: ClientGroups, **of: str) -> Connection:
    one = Connection(**of)
    groups.name(one, one.client_id)
    return one


@pytest.fixture
def groups() -> ClientGroups:
    return ClientGroups(limit=2)


def test_what_the_coordinator_s_connection_names_holds_for_those_before_and_after_it(
    groups: ClientGroups,
) -> None:
    """A Java consumer asks the group's coordinator on a connection of its own."""
    before, coordinator = connect(groups), connect(groups)
    groups.learn(coordinator, "invoices")
    after = connect(groups)
    assert [one.group for one in (before, coordinator, after)] == ["invoices"] * 3


@pytest.mark.parametrize("other", [{"host": "10.0.0.2"}, {"client_id": "clearing"}])
def test_another_host_or_client_id_is_another_client(groups: ClientGroups, other: dict) -> None:
    groups.learn(connect(groups), "invoices")
    assert connect(groups, **other).group is None


def test_of_two_groups_of_one_client_only_what_a_connection_named_itself_is_known(
    groups: ClientGroups,
) -> None:
    reader, first, second = connect(groups), connect(groups), connect(groups)
    groups.learn(first, "a")
    assert reader.group == "a"
    groups.learn(second, "b")
    assert (reader.group, first.group, second.group) == (None, "a", "b")
    groups.close(first)
    assert (reader.group, second.group) == ("b", "b")


def test_a_client_that_comes_back_under_another_group_has_that(groups: ClientGroups) -> None:
    old = connect(groups)
    groups.learn(old, "a")
    groups.close(old)
    new = connect(groups)
    assert new.group == "a"
    groups.learn(new, "b")
    assert (new.group, connect(groups).group) == ("b", "b")


def test_a_connection_without_a_client_id_has_what_it_names(groups: ClientGroups) -> None:
    one, other = Connection(client_id=None), Connection(client_id=None)
    for nameless in (one, other):
        groups.name(nameless, None)
    groups.learn(one, "a")
    assert (one.group, other.group) == ("a", None)
    groups.close(one)


def test_a_connection_that_changes_its_client_id_changes_its_group(groups: ClientGroups) -> None:
    groups.learn(connect(groups), "a")
    one = connect(groups)
    groups.name(one, "other")
    assert one.group is None


def test_groups_of_clients_that_left_are_remembered_up_to_the_bound(groups: ClientGroups) -> None:
    for number in range(3):
        one = connect(groups, client_id=f"client-{number}")
        groups.learn(one, f"group-{number}")
        groups.close(one)
        assert len(groups) == min(number + 1, groups.limit)
    assert [connect(groups, client_id=f"client-{number}").group for number in range(3)] == [
        None,
        "group-1",
        "group-2",
    ]
    assert len(groups) == 0, "they are open again"


def test_nothing_is_remembered_of_clients_without_a_group(groups: ClientGroups) -> None:
    for number in range(5):
        groups.close(connect(groups, client_id=f"client-{number}"))
    assert len(groups) == 0 and not groups._clients and not groups._keys


def test_long_names_are_cut(groups: ClientGroups) -> None:
    one = connect(groups, client_id="c" * 1000)
    groups.learn(one, "g" * 1000)
    assert one.group == "g" * MAX_TEXT_CHARS
    assert connect(groups, client_id="c" * 1001).group == one.group

"""Data of a process at its admin port."""

import json
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.kit.broker.settings import HOST
from tests.proxy.forebay_process import PATIENCE_S, Alone, wait_until


def test_the_token_is_that_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hunter2\n")
    monkeypatch.setenv("FOREBAY_ADMIN_TOKEN_FILE", str(path))
    with Alone(subprocess.DEVNULL) as forebay:  # it is there once /livez is answered
        with pytest.raises(urllib.error.HTTPError, match="401"):
            forebay.ask("/config")
        asked = urllib.request.Request(f"http://{HOST}:{forebay.admin_port}/config")
        asked.add_header("Authorization", "Bearer hunter2")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            said = answer.read()
    assert str(path).encode() in said
    assert b"hunter2" not in said


def test_clients_are_counted_by_the_name_of_their_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_LISTENERS_0_NAME", "clients")
    with Alone(subprocess.DEVNULL) as forebay:
        with socket.create_connection((HOST, forebay.port), PATIENCE_S):
            wait_until(lambda: forebay.metric("forebay_listener_connections") == 1)
            assert 'forebay_listener_connections{listener="clients"} 1.0' in forebay.ask("/metrics")
        wait_until(lambda: forebay.metric("forebay_listener_connections") == 0)
        assert forebay.metric("forebay_listener_accepted_total") == 1


def test_the_live_view_wants_the_token_and_its_page_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("hunter2\n")
    monkeypatch.setenv("FOREBAY_ADMIN_TOKEN_FILE", str(path))
    with Alone(subprocess.DEVNULL) as forebay:
        wait_until(lambda: "<title>Forebay</title>" in forebay.ask("/"))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            forebay.ask("/top")
        asked = urllib.request.Request(f"http://{HOST}:{forebay.admin_port}/top")
        asked.add_header("Authorization", "Bearer hunter2")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            said = json.load(answer)
    assert said["forebay"]["cacheMode"] == "serve" and said["topics"] == []

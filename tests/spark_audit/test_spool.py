"""Each byte of a growing log is taken once, whatever happens between two steps."""

import gzip
from pathlib import Path

import pytest

from spark_audit import spool as module
from spark_audit.spool import Spool, build_key, name_uncompressed

LIMIT = 1 << 30


def taken(spool: Path) -> bytes:
    """The chunks of all files in their order, one file behind another."""
    return b"".join(path.read_bytes() for path in sorted(spool.glob("*/*.jsonl")))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "access-1.jsonl"
    path.parent.mkdir()
    return path


def test_whole_lines_are_taken_once_as_the_file_grows(tmp_path: Path, log: Path) -> None:
    spool = Spool(tmp_path / "spool")
    log.write_bytes(b"one\ntwo\nthr")
    assert spool.take([log], LIMIT) == 8
    assert spool.take([log], LIMIT) == 0
    with log.open("ab") as file:
        file.write(b"ee\n")
    assert Spool(tmp_path / "spool").take([log], LIMIT) == 6
    assert taken(tmp_path / "spool") == b"one\ntwo\nthree\n"


def test_a_file_goes_on_where_it_was_when_it_was_compressed(tmp_path: Path, log: Path) -> None:
    spool = Spool(tmp_path / "spool")
    log.write_bytes(b"one\n")
    spool.take([log], LIMIT)
    packed = log.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(b"one\ntwo\ntorn"))
    log.unlink()
    assert spool.take([packed], LIMIT) == 8
    assert taken(tmp_path / "spool") == b"one\ntwo\ntorn"
    packed.write_bytes(b"is not opened again")
    assert spool.take([packed], LIMIT) == 0
    (position,) = spool.positions().values()
    assert position == (str(log), 12, True)


def test_a_cleared_spool_takes_nothing_again(tmp_path: Path, log: Path) -> None:
    spool = Spool(tmp_path / "spool")
    log.write_bytes(b"one\n")
    spool.take([log], LIMIT)
    spool.clear()
    assert taken(tmp_path / "spool") == b""
    assert Spool(tmp_path / "spool").take([log], LIMIT) == 0


def test_a_chunk_counts_although_the_position_was_not_written(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, position: module.Position) -> None:
        if position.taken_bytes:
            raise KeyboardInterrupt

    log.write_bytes(b"one\n")
    with monkeypatch.context() as broken:
        broken.setattr(module, "_write", fail)
        with pytest.raises(KeyboardInterrupt):
            Spool(tmp_path / "spool").take([log], LIMIT)
    with log.open("ab") as file:
        file.write(b"two\n")
    assert Spool(tmp_path / "spool").take([log], LIMIT) == 4
    assert taken(tmp_path / "spool") == b"one\ntwo\n"


def test_what_was_written_in_part_is_written_again(tmp_path: Path, log: Path) -> None:
    folder = tmp_path / "spool" / build_key(str(log))
    folder.mkdir(parents=True)
    (folder / "_partial").write_bytes(b"half a chunk")
    log.write_bytes(b"one\n")
    assert Spool(tmp_path / "spool").take([log], LIMIT) == 4
    assert taken(tmp_path / "spool") == b"one\n"


@pytest.mark.parametrize("is_compressed", [False, True])
def test_chunks_end_with_lines_and_are_bounded(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, is_compressed: bool
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 100)
    monkeypatch.setattr(module, "_PIECE_BYTES", 40)
    text = b"".join(b"line %d\n" % number for number in range(100)) + b"x" * 300 + b"\nlast\n"
    if is_compressed:
        log = log.with_suffix(".jsonl.gz")
    log.write_bytes(gzip.compress(text) if is_compressed else text)
    spool = Spool(tmp_path / "spool")
    assert 200 <= spool.take([log], 200) < 320
    while spool.take([log], 200):
        pass
    chunks = [path.read_bytes() for path in sorted((tmp_path / "spool").glob("*/*.jsonl"))]
    assert b"".join(chunks) == text
    assert max(map(len, chunks)) <= 120
    assert all(chunk.endswith(b"\n") or set(chunk) == set(b"x") for chunk in chunks)


def test_of_a_damaged_file_whole_lines_are_taken(tmp_path: Path, log: Path) -> None:
    torn = tmp_path / "torn.jsonl.gz"
    text = b"".join(b"line %d\n" % (number * 7919) for number in range(50_000))
    torn.write_bytes(gzip.compress(text)[:-1000])
    spool = Spool(tmp_path / "spool")
    assert spool.take([log, torn], LIMIT) > 100_000
    read = taken(tmp_path / "spool")
    assert text.startswith(read) and read.endswith(b"\n")
    assert spool.take([log, torn], LIMIT) == 0
    assert name_uncompressed(torn) == str(tmp_path / "torn.jsonl")

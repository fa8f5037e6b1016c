"""Renewed TLS files of a whole Forebay without a broker: real handshakes before and after each change."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from proxy.admin.samples import collect
from proxy.renewal import LOOK_EVERY_S
from tests.kit.broker.certificates import (
    TlsFiles,
    write_certificates,
    write_crl,
    write_identity,
)
from tests.kit.broker.secret_volume import SecretVolume
from tests.kit.broker.settings import HOST
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.test_reload import File, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from proxy.app import Forebay
    from proxy.tls_files import WatchedFiles

DAY = datetime.timedelta(days=1)


class Stand:
    """A Forebay whose only listener has its files in a Secret's volume."""

    def __init__(self, forebay: Forebay, volume: SecretVolume) -> None:
        self.forebay, self.volume = forebay, volume

    @property
    def watched(self) -> dict[str, WatchedFiles]:
        return {one.side: one for one in self.forebay.reloader.renewal.watched}

    async def look(self) -> None:
        """Let the janitor's part run now, to its end."""
        renewal = self.forebay.reloader.renewal
        if renewal._task is not None:
            await renewal._task
        renewal._looked_at = float("-inf")
        renewal.tick(0.0)
        if renewal._task is not None:
            await renewal._task

    async def shake(self, files: TlsFiles, **options: Any) -> ssl.SSLObject | None:
        """A handshake that trusts the authority of `files`; None if it fails."""
        context = build_context(files, **options)
        bound = self.forebay.listeners[0].bound
        assert bound is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(
                    *bound, ssl=context, server_hostname="localhost"
                )
                found = writer.get_extra_info("ssl_object")
                if options.get("shows") is not None:  # TLS 1.3 refuses after the handshake
                    writer.write(b"\0\0\0\0")
                    with contextlib.suppress(ConnectionError):
                        await reader.read(1)
                writer.close()
        except (ssl.SSLError, ConnectionError):
            return None
        assert isinstance(found, ssl.SSLObject)
        return found

    def samples(self, name: str) -> dict[tuple[str, ...], Any]:
        return {one.labels: one.value for one in collect(self.forebay) if one.name == name}


def build_context(files: TlsFiles, **options: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.authority))
    if (shown := options.get("shows")) is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    if (version := options.get("version")) is not None:
        context.minimum_version = context.maximum_version = version
    if (ciphers := options.get("ciphers")) is not None:
        context.set_ciphers(ciphers)
    if (protocols := options.get("alpn")) is not None:
        context.set_alpn_protocols(protocols)
    return context


def pair(files: TlsFiles, **more: Any) -> dict[str, Any]:
    server = files.server
    return {"tls.crt": server.certificate, "tls.key": server.key, **more}


@asynccontextmanager
async def standing(directory: Path, files: dict[str, Any], **keys: Any) -> AsyncIterator[Stand]:
    volume = SecretVolume(directory / "secret")
    volume.write(files)
    names = {"certificateFile": "tls.crt", "keyFile": "tls.key"}
    tls = {key: volume.path(name) for key, name in names.items()} | keys
    tls = {key: volume.path(one) if key.endswith("File") else one for key, one in tls.items()}
    entry: dict[str, Any] = {"listen": f"{HOST}:0", "upstream": f"{HOST}:1", "tls": tls}
    if "clientAuth" in keys:
        entry["allowSharedIdentity"] = True
    file = File(directory / "forebay.yaml", listeners=[entry])
    async with running(file.load) as forebay:
        forebay.janitor.stop()
        yield Stand(forebay, volume)


def make(directory: Path, name: str, key: ec.EllipticCurvePrivateKey | None = None) -> TlsFiles:
    (directory / name).mkdir()
    return write_certificates(directory / name, key)


async def test_a_swapped_link_is_seen_at_the_next_look(tmp_path: Path) -> None:
    old, new = make(tmp_path, "old"), make(tmp_path, "new")
    async with standing(tmp_path, pair(old)) as stand:
        assert await stand.shake(old)
        ends = stand.samples("forebay_tls_certificate_expiry_seconds")
        stand.volume.write(pair(new))
        await stand.look()
        assert await stand.shake(new)
        assert await stand.shake(old) is None
        assert stand.watched["client"].counts.loaded == 1
        assert ends.keys() == {("default", "client", "certificate")}
        await stand.look()
        assert stand.watched["client"].counts.loaded == 1, "the same files are loaded once"


async def test_half_a_pair_keeps_the_former_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = make(tmp_path, "old"), make(tmp_path, "new")
    caplog.set_level(logging.INFO, "forebay.tls")
    async with standing(tmp_path, pair(old)) as stand:
        stand.volume.write(pair(old) | {"tls.crt": new.server.certificate})
        for _ in range(3):
            await stand.look()
        assert await stand.shake(old)
        assert stand.watched["client"].counts.refused == 3
        (told,) = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert "put a certificate and its key there" in told.getMessage()
        assert "KEY_VALUES_MISMATCH" in told.getMessage()
        stand.volume.write(pair(new))
        await stand.look()
        assert await stand.shake(new)
        assert stand.watched["client"].failure == ""
        loads = stand.samples("forebay_tls_loads_total")
        assert loads["default", "client", "refused"] == 3
        assert loads["default", "client", "loaded"] == 1


@pytest.mark.parametrize(
    "text", [None, "", "no certificate", "-----BEGIN CERTIFICATE-----\nQUJD\n"]
)
async def test_a_broken_file_keeps_the_former(tmp_path: Path, text: str | None) -> None:
    old = make(tmp_path, "old")
    async with standing(tmp_path, pair(old)) as stand:
        broken = tmp_path / "broken"
        broken.write_text(text or "")
        stand.volume.write(pair(old) | {"tls.crt": broken})
        if text is None:
            (stand.volume.directory / "..data" / "tls.crt").unlink()
        await stand.look()
        assert await stand.shake(old)
        assert stand.watched["client"].failure
        stand.volume.write(pair(old))
        await stand.look()
        assert stand.watched["client"].failure == ""


async def test_an_ended_certificate_does_not_replace_one_that_holds(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    old = make(tmp_path, "old", key)
    (tmp_path / "late").mkdir()
    late = write_identity(tmp_path / "late", "broker", key, -DAY / 2)
    async with standing(tmp_path, pair(old)) as stand:
        stand.volume.write({"tls.crt": late.certificate, "tls.key": late.key})
        await stand.look()
        assert stand.watched["client"].failure == "the certificate has ended already"
        assert await stand.shake(old)


async def test_an_ended_certificate_at_the_start_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    good = make(tmp_path, "good", key)
    (tmp_path / "late").mkdir()
    late = write_identity(tmp_path / "late", "broker", key, -DAY / 2)
    async with standing(tmp_path, {"tls.crt": late.certificate, "tls.key": late.key}) as stand:
        assert "the certificate has ended" in caplog.text
        assert await stand.shake(good) is None
        stand.volume.write(pair(good))
        await stand.look()
        assert await stand.shake(good)


async def test_a_client_that_a_renewed_list_revokes_is_refused(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    files = make(tmp_path, "files", key)
    (tmp_path / "other").mkdir()
    other = write_identity(tmp_path / "other", "client", key)
    crl, ca = tmp_path / "crl.pem", {"ca.crt": files.authority}
    write_crl(crl, key)
    keys = {"clientAuth": "required", "clientCaFile": "ca.crt", "crlFile": "crl.pem"}
    async with standing(tmp_path, pair(files, **ca) | {"crl.pem": crl}, **keys) as stand:
        version = ssl.TLSVersion.TLSv1_2  # refuses within the handshake
        assert await stand.shake(files, version=version) is None
        for shown in (files.client, other):
            assert await stand.shake(files, version=version, shows=shown)
        write_crl(crl, key, (other.certificate,))
        stand.volume.write(pair(files, **ca) | {"crl.pem": crl})
        await stand.look()
        assert await stand.shake(files, version=version, shows=files.client)
        assert await stand.shake(files, version=version, shows=other) is None
        ends = stand.samples("forebay_tls_certificate_expiry_seconds")
        assert {kind for _, _, kind in ends} == {"certificate", "authority", "crl"}
        write_crl(crl, key, lasts=-DAY / 2)
        stand.volume.write(pair(files, **ca) | {"crl.pem": crl})
        await stand.look()
        assert stand.watched["client"].failure == "the crl has ended already"
        assert await stand.shake(files, version=version, shows=files.client)


async def test_versions_ciphers_and_alpn(tmp_path: Path) -> None:
    files = make(tmp_path, "files")
    ciphers = {"ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"}
    async with standing(tmp_path, pair(files), **ciphers) as stand:
        old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
        spoken = await stand.shake(files, version=old, alpn=["h2", "http/1.1"])
        assert spoken is not None
        assert spoken.version() == "TLSv1.2"
        assert spoken.selected_alpn_protocol() is None
        assert (spoken.cipher() or ("",))[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        other = "ECDHE-ECDSA-AES128-GCM-SHA256"
        assert await stand.shake(files, version=old, ciphers=other) is None
        assert await stand.shake(files, version=new)


async def test_the_lowest_version(tmp_path: Path) -> None:
    files = make(tmp_path, "files")
    async with standing(tmp_path, pair(files), minVersion="TLSv1.3") as stand:
        assert await stand.shake(files, version=ssl.TLSVersion.TLSv1_2) is None
        assert await stand.shake(files, version=ssl.TLSVersion.TLSv1_3)


async def test_files_toward_the_broker_are_loaded_apart(tmp_path: Path) -> None:
    """A broken authority of the broker keeps no certificate of the listener from being loaded."""
    old, new = make(tmp_path, "old"), make(tmp_path, "new")
    authority = tmp_path / "broker-ca.pem"
    authority.write_bytes(old.authority.read_bytes())
    tls = {
        "certificateFile": str(tmp_path / "tls.crt"),
        "keyFile": str(tmp_path / "tls.key"),
    }

    def install(files: TlsFiles) -> None:
        (tmp_path / "tls.crt").write_bytes(files.server.certificate.read_bytes())
        (tmp_path / "tls.key").write_bytes(files.server.key.read_bytes())

    install(old)
    upstream_tls = {"enabled": True, "caFile": str(authority)}
    entry = {"listen": f"{HOST}:0", "upstream": f"{HOST}:1", "tls": tls}
    file = File(tmp_path / "f.yaml", listeners=[entry | {"upstreamTls": upstream_tls}])
    async with running(file.load) as forebay:
        forebay.janitor.stop()
        stand = Stand(forebay, SecretVolume(tmp_path / "unused"))
        (listener,) = forebay.listeners
        dial = listener.dial
        authority.write_text("broken")
        install(new)
        await stand.look()
        assert await stand.shake(new)
        assert listener.dial is dial
        assert stand.watched["broker"].failure
        authority.write_bytes(new.authority.read_bytes())
        await stand.look()
        assert listener.dial is not dial
        assert listener.dial.ssl_context is not dial.ssl_context
        assert stand.watched["broker"].failure == ""


async def test_a_reload_loads_the_same_files_once(tmp_path: Path) -> None:
    old, new = make(tmp_path, "old"), make(tmp_path, "new")
    async with standing(tmp_path, pair(old)) as stand:
        stand.volume.write(pair(new))
        assert (await stand.forebay.reloader.reload()).certificates == ("default",)
        assert await stand.shake(new)
        await stand.look()
        assert stand.watched["client"].counts.loaded == 1


def test_a_change_is_seen_within_ten_seconds() -> None:
    """The janitor comes each second, and loading takes milliseconds."""
    assert LOOK_EVERY_S + 1 <= 5


async def test_the_janitor_looks(tmp_path: Path) -> None:
    old, new = make(tmp_path, "old"), make(tmp_path, "new")
    async with standing(tmp_path, pair(old)) as stand:
        stand.forebay.janitor.start()
        stand.volume.write(pair(new))
        await until(lambda: stand.watched["client"].counts.loaded)
        assert await stand.shake(new)

"""Certificates in files: read whole, judged before they are used, and read again when they change.

A new pair is taken only where it is sound: readable, the key is the certificate's, and the
certificate is of today. Else the old one stays, and the log says why, once per change. What is
taken is given to new connections, in and out; those that stand go on with what they began with.

What a certificate says is found out by a handshake with ourselves, in memory: so the judge is the
TLS library, not a parser of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oncelog_server.core.ports import Clock, Reporter
from oncelog_server.runtime.rpc.tls import SPIFFE, TlsFiles, TlsPems, is_spiffe_id

# How often the files are looked at.
LOOK_EVERY_MS: Final = 1_000
# A certificate that ends so soon is spoken of, once a day.
EXPIRES_SOON_MS: Final = 14 * 24 * 3_600_000
DAY_MS: Final = 24 * 3_600_000
# The end of what has none.
NEVER_MS: Final = 1 << 52
# X509_V_FLAG_NO_CHECK_TIME: ssl has no name for it.
_ANY_TIME: Final = 0x200000
_HANDSHAKE_STEPS_MAX: Final = 10


class BrokenPair(OSError):
    """A certificate and key that cannot be used; the message says why, and names the file."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says."""

    # As `tls.identity_of` tells it of a peer that shows this certificate; "" where it has no name.
    identity: str
    # Wall clock, milliseconds.
    not_before_ms: int
    not_after_ms: int
    # Host names and addresses that it may be called by.
    names: tuple[str, ...]

    def is_valid(self, now_ms: int) -> bool:
        return self.not_before_ms <= now_ms < self.not_after_ms


def read(files: TlsFiles) -> TlsPems:
    """Where no certificate is named, none. Raises BrokenPair naming the file."""
    paths = (files.ca, files.certificate, files.key)
    return TlsPems(*(_read(path) if path else b"" for path in paths))


def look(files: TlsFiles) -> Certificate:
    """What its own certificate says, whatever the date. Raises BrokenPair where certificate and key
    do not belong together or are none, or the authority is none."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=files.ca)
    except (ssl.SSLError, OSError) as error:
        raise BrokenPair(f"{files.ca}: {_said(error)}") from None
    if not files.certificate:
        return Certificate("", 0, NEVER_MS, ())
    try:
        shown = _shown(files)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise BrokenPair(f"{files.certificate} and {files.key}: {_said(error)}") from None
    return Certificate(
        _identity(shown),
        _ms(shown["notBefore"]),
        _ms(shown["notAfter"]),
        tuple(value for kind, value in _alternatives(shown) if kind in ("DNS", "IP Address")),
    )


def _shown(files: TlsFiles) -> dict[str, Any]:
    """What the other side of a handshake is shown. It trusts this very certificate, so what signed
    it does not matter."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A key that asks for a password would ask on the terminal.
    ours.load_cert_chain(files.certificate, files.key, password=b"")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    theirs.check_hostname = False
    theirs.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME)
    theirs.load_verify_locations(cafile=files.certificate)
    to_us, to_them = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        theirs.wrap_bio(to_them, to_us),
        ours.wrap_bio(to_us, to_them, server_side=True),
    )
    for _ in range(_HANDSHAKE_STEPS_MAX):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        shown = sides[0].getpeercert() if sides[0].version() else None
        if shown:
            return shown
    raise ValueError("no certificate was shown")


def _identity(shown: dict[str, Any]) -> str:
    """In the precedence of `tls.IDENTITY_PROPERTIES`, and by its rules."""
    alternatives = _alternatives(shown)
    uris = [value for kind, value in alternatives if kind == "URI"]
    if len(uris) == 1 and uris[0].startswith(SPIFFE):
        return _whole(uris[0])
    subject = [pair for group in shown.get("subject", ()) for pair in group]
    common = [value for name, value in subject if name == "commonName"]
    dns = [value for kind, value in alternatives if kind == "DNS"]
    every = [value for _, value in alternatives]
    name = next((value for value in (*common[:1], *uris, *dns, *every) if value), "")
    return "" if any(map(is_spiffe_id, (name, *uris))) else _whole(name)


def _whole(name: str) -> str:
    return "" if "\0" in name else name


def _alternatives(shown: dict[str, Any]) -> Sequence[tuple[str, str]]:
    names: Sequence[tuple[str, str]] = shown.get("subjectAltName", ())
    return names


def _ms(text: str) -> int:
    return int(ssl.cert_time_to_seconds(text)) * 1000


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BrokenPair(f"cannot read the TLS file {path}: {error.strerror}") from None


# ------------------------------------------------------------------------------- files that change

# Called with what was read; on the loop.
Taken = Callable[[TlsPems, Certificate], None]
_Seen = tuple[object, ...]


class CertificateFiles:
    """One pair and its authority, watched. `start` reads them; then everybody who was registered
    (`on_change`) is told of each change."""

    def __init__(self, what: str, files: TlsFiles, clock: Clock, reporter: Reporter) -> None:
        """`what` they are for, in events: "node" or "etcd"."""
        self._what = what
        self._files = files
        self._clock = clock
        self._reporter = reporter
        self._listeners: list[Taken] = []
        self._seen: _Seen = ()
        self._warned_ms = -DAY_MS
        self._task: asyncio.Task[None] | None = None
        self.pems: TlsPems
        self.certificate: Certificate

    def load(self) -> None:
        """First of all. Raises BrokenPair; one that is too old, or too new, is taken and spoken
        of: whoever renews it need not start this process again."""
        self._seen = _seen(self._files)
        self.pems = read(self._files)
        self.certificate = look(self._files)
        now_ms = self._clock.now().wall_ms
        if not self.certificate.is_valid(now_ms):
            self._reporter.event(
                "certificate out of date",
                level="error",
                of=self._what,
                error=_out_of_date(self.certificate, now_ms),
            )

    def on_change(self, taken: Taken) -> None:
        """`taken` is called with each pair that is taken after `load`."""
        self._listeners.append(taken)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_MS / 1000)
            seen = _seen(self._files)
            if seen != self._seen:
                self._seen = seen
                self._take()
            self._speak_of_the_end()

    def _take(self) -> None:
        now_ms = self._clock.now().wall_ms
        try:
            pems = read(self._files)
            certificate = look(self._files)
            if not certificate.is_valid(now_ms):
                raise BrokenPair(_out_of_date(certificate, now_ms))
        except BrokenPair as error:
            self._refused(str(error))
            return
        self.pems, self.certificate = pems, certificate
        self._warned_ms = -DAY_MS
        self._reporter.event(
            "certificate loaded",
            of=self._what,
            identity=certificate.identity,
            not_after=_day(certificate.not_after_ms),
        )
        for taken in self._listeners:
            taken(pems, certificate)

    def _refused(self, why: str) -> None:
        self._reporter.event("certificate refused", level="error", of=self._what, error=why)

    def _speak_of_the_end(self) -> None:
        if not self._files.certificate:
            return
        now = self._clock.now()
        left_ms = self.certificate.not_after_ms - now.wall_ms
        self._reporter.gauge("certificate_seconds_left", left_ms / 1000, of=self._what)
        if left_ms < EXPIRES_SOON_MS and now.monotonic_ms - self._warned_ms >= DAY_MS:
            self._warned_ms = now.monotonic_ms
            self._reporter.event(
                "certificate ends soon",
                level="warning",
                of=self._what,
                not_after=_day(self.certificate.not_after_ms),
            )


def _seen(files: TlsFiles) -> _Seen:
    """What changes when a file is written, replaced, or reached by another link."""
    return tuple(_stat(path) for path in (files.ca, files.certificate, files.key))


def _stat(path: str) -> object:
    try:
        stat = os.stat(path)
    except OSError as error:
        return error.errno
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _out_of_date(certificate: Certificate, now_ms: int) -> str:
    if now_ms < certificate.not_before_ms:
        return f"the certificate is valid from {_day(certificate.not_before_ms)} on: look at clocks"
    return f"the certificate ended {_day(certificate.not_after_ms)}: put a new one in its place"


def _day(wall_ms: int) -> str:
    return datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC).isoformat()

"""The client's certificates: read, judged, and read again when their files change.

A new pair is taken only where it is sound: readable, and the key is the certificate's. Else the one
before stays, and a warning says why, once per change. What is taken is for new connections; those
that stand go on with what they began with.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from oncelog._warning import warn_of_no_line
from oncelog.options import Tls
from oncelogpb import errors

# How often the files are looked at, seconds.
LOOK_EVERY_S: Final = 1.0

# What tells one state of a file from another: inode, size, time of its last change.
Signature = tuple[tuple[int, int, int], ...]


class Pems(NamedTuple):
    """Contents of the files, for gRPC."""

    ca: bytes | None
    key: bytes | None
    certificate: bytes | None


class Certificates:
    """Of one connection. `now_s` is a monotonic clock."""

    def __init__(self, tls: Tls, now_s: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidArgument naming the file that cannot be used."""
        self._tls = tls
        self._now_s = now_s
        self._looked_s = now_s()
        try:
            # Before the contents: a change between the two is seen as one.
            self._signature = _signature(tls)
            self.pems = _read(tls)
        except ssl.SSLError as error:
            raise errors.InvalidArgument(
                f"the TLS files cannot be used: {_said(error)}", field="tls"
            ) from None
        except OSError as error:
            raise errors.InvalidArgument(
                f"a TLS file cannot be read: {error}", field="tls"
            ) from None

    def have_changed(self) -> bool:
        """Looks, now and then. True: `pems` are new ones, for connections from now on."""
        now_s = self._now_s()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        try:
            signature = _signature(self._tls)
            if signature == self._signature:
                return False
            pems = _read(self._tls)
        except (OSError, ssl.SSLError) as error:
            # Perhaps the half of a pair that is being replaced: it is looked at again.
            self._warn(_said(error))
            return False
        self._signature = signature
        changed, self.pems = pems != self.pems, pems
        return changed

    def _warn(self, why: str) -> None:
        warn_of_no_line(
            "the TLS files on disk cannot be used, the connection goes on with those before: "
            f"{why}",
            RuntimeWarning,
        )


def _signature(tls: Tls) -> Signature:
    paths = (tls.ca_file, tls.certificate_file, tls.key_file)
    stats = [os.stat(path) for path in paths if path is not None]
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _read(tls: Tls) -> Pems:
    """Raises OSError, SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.ca_file is not None:
        context.load_verify_locations(cafile=tls.ca_file)
    if tls.certificate_file is not None:
        # A key that asks for a password would ask on the terminal.
        context.load_cert_chain(tls.certificate_file, tls.key_file, password=b"")
    return Pems(_bytes(tls.ca_file), _bytes(tls.key_file), _bytes(tls.certificate_file))


def _bytes(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"{error.reason.replace('_', ' ').lower()} (do certificate and key belong together?)"
    return str(error)

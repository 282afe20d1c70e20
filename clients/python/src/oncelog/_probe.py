"""Why a process cannot be talked to: said by a connection of our own, after a first contact failed.

gRPC says "failed to connect to all addresses" of a wrong name, a wrong port, a wrong scheme and a
wrong certificate alike. This looks at what really happens: name, connection, TLS, and whether what
answers speaks HTTP/2. It sends a client's preface and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final, NamedTuple

from oncelog._core.routing import Endpoint
from oncelog.options import Tls

# What an HTTP/2 client says first, with empty SETTINGS.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_FRAME: Final = 4
TLS_ALERT: Final = 0x15
FRAME_HEAD_BYTES: Final = 9

# X509 verification results (openssl's x509_vfy.h).
EXPIRED: Final = 10
NOT_YET_VALID: Final = 9
HOSTNAME_MISMATCH: Final = frozenset({62, 64})
# What OpenSSL calls an answer that is no TLS.
NO_TLS: Final = ("WRONG_VERSION", "PACKET_LENGTH", "RECORD", "HTTP_REQUEST", "EOF", "UNKNOWN_PROT")


class Problem(NamedTuple):
    """What is wrong with one address."""

    # address, refused, silent, unreachable, tls_wanted, tls_not_spoken, certificate,
    # client_certificate, not_oncelog.
    kind: str
    # What was found.
    fact: str
    # What to do, in the words of this client: another program that connects by it has its own.
    advice: str
    # It may pass by itself: a process that starts, a name that spreads.
    passes: bool

    @property
    def text(self) -> str:
        return f"{self.fact}: {self.advice}" if self.advice else self.fact


async def diagnose(to: Endpoint, tls: Tls | None, seconds: float) -> Problem | None:
    """None where nothing is wrong below gRPC. Bounded by `seconds`. Does not raise."""
    try:
        async with asyncio.timeout(seconds):
            return await (_plainly(to) if tls is None else _by_tls(to, tls))
    except TimeoutError:
        return Problem(
            "silent",
            f"{to} does not answer",
            "the address is wrong, a firewall drops what comes, or the process there hangs",
            passes=True,
        )
    except socket.gaierror as error:
        return Problem(
            "address",
            f"the name {to.host!r} is not known ({error.strerror})",
            "check the address",
            passes=error.errno == socket.EAI_AGAIN,
        )
    except ConnectionRefusedError:
        return Problem(
            "refused",
            f"nobody listens at {to}",
            "is it started (`oncelog up`), and is the port right?",
            passes=True,
        )
    except OSError as error:
        return Problem("unreachable", f"{to} cannot be reached: {error}", "", passes=True)


async def _plainly(to: Endpoint) -> Problem | None:
    try:
        said = await _greet(to, None, None)
    except (ConnectionResetError, BrokenPipeError):
        said = b""
    if _is_http2(said):
        return None
    if said[:1] == bytes([TLS_ALERT]) or (not said and await _speaks_tls(to)):
        return Problem(
            "tls_wanted",
            f"{to} speaks TLS",
            "connect with tls=oncelog.Tls(ca_file=...), or tls={} where the system knows its "
            "authority",
            passes=False,
        )
    return _no_oncelog(to, said)


async def _by_tls(to: Endpoint, tls: Tls) -> Problem | None:
    try:
        said = await _greet(to, _context(tls), tls.server_name or to.host)
    except ssl.SSLCertVerificationError as error:
        return _distrusted(to, tls, error)
    except ssl.SSLError as error:
        name = error.reason or str(error)
        if not any(word in name for word in NO_TLS):
            return _own_certificate(to, tls, name)
        said = b""
    except (ConnectionResetError, BrokenPipeError):
        said = b""
    if _is_http2(said):
        return None
    if not said and _is_http2(await _quietly(to)):
        return Problem(
            "tls_not_spoken", f"{to} does not speak TLS", "connect without `tls`", passes=False
        )
    if not said and await _speaks_tls(to):
        # After the handshake, which is when TLS 1.3 looks at the client's certificate.
        return _own_certificate(to, tls, "it ended the connection")
    return _no_oncelog(to, said)


async def _greet(to: Endpoint, context: ssl.SSLContext | None, server_name: str | None) -> bytes:
    """What it answers first; empty where it hangs up. Raises OSError, SSLError."""
    reader, writer = await asyncio.open_connection(
        to.host, to.port, ssl=context, server_hostname=server_name if context else None
    )
    try:
        writer.write(PREFACE)
        await writer.drain()
        return await reader.read(64)
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.CancelledError):
            await writer.wait_closed()


async def _quietly(to: Endpoint) -> bytes:
    try:
        return await _greet(to, None, None)
    except OSError:
        return b""


async def _speaks_tls(to: Endpoint) -> bool:
    """Whoever it is."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    anybody.set_alpn_protocols(["h2"])
    try:
        await _greet(to, anybody, to.host)
    except ssl.SSLError as error:
        return not any(word in (error.reason or "") for word in NO_TLS)
    except OSError:
        return False
    return True


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.set_alpn_protocols(["h2"])
    if tls.certificate_file is not None:
        # A key that asks for a password would ask on the terminal.
        context.load_cert_chain(tls.certificate_file, tls.key_file, password=b"")
    return context


def _is_http2(said: bytes) -> bool:
    return len(said) >= FRAME_HEAD_BYTES and said[3] == SETTINGS_FRAME


def _distrusted(to: Endpoint, tls: Tls, error: ssl.SSLCertVerificationError) -> Problem:
    why = error.verify_message
    if error.verify_code in HOSTNAME_MISMATCH:
        advice = "connect by a name that it carries, or say that name as tls.server_name"
    elif error.verify_code in (EXPIRED, NOT_YET_VALID):
        advice = "renew it, or set the clock of this machine right"
    else:
        by = "the system's authorities" if tls.ca_file is None else f"those of {str(tls.ca_file)!r}"
        why = f"{why}; it is not signed by {by}"
        advice = "give the authority that signed it as tls.ca_file"
    fact = f"the certificate of {to} is not accepted ({why})"
    return Problem("certificate", fact, advice, passes=False)


def _own_certificate(to: Endpoint, tls: Tls, said: str) -> Problem:
    shown = said.replace("_", " ").lower()
    if tls.certificate_file is None:
        fact = f"{to} wants a client certificate ({shown})"
        advice = "give tls.certificate_file and tls.key_file"
    else:
        own = str(tls.certificate_file)
        fact = f"{to} does not accept the client certificate {own!r} ({shown})"
        advice = "is it of today, and signed by an authority that the services trust?"
    return Problem("client_certificate", fact, advice, passes=False)


def _no_oncelog(to: Endpoint, said: bytes) -> Problem:
    what = "speaks another protocol" if said else "hangs up on whoever speaks Oncelog's protocol"
    if said.startswith(b"HTTP/"):
        what = "is a web server"
    return Problem(
        "not_oncelog",
        f"{to} {what}",
        "it is no Oncelog process; the port may be another service's",
        passes=False,
    )

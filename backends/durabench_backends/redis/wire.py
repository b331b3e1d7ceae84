"""One connection to a server: bytes in and out, no retries, every wait with an end, no secret in what goes wrong.

The client library is used for its sockets, TLS, handshake and parser; commands take a leaner way than its client
object.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from durabench_backends import locate, urls
from durabench_backends.contract import NotReady
from durabench_backends.redis.promises import WAITAOF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from durabench_backends.redis.promises import Engine

CONNECT_TIMEOUT_S = 2.0
HANDSHAKE_TIMEOUT_S = 5.0
"""Longest wait for the first answer: a server under `always` answers nobody while a slow flush lasts."""
OPERATION_TIMEOUT_S = 30.0

PREFIX = "durabench"
SCAN_COUNT = b"1000"
POOL_OPTIONS = ("max_connections", "timeout")
"""Arguments of a URL that mean a pool, and there is one connection."""


class Connection(Protocol):
    """The part used of redis-py's connection, whose own methods carry no types."""

    socket_timeout: float

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_command(self, *command: bytes) -> None: ...
    def pack_commands(self, commands: Sequence[Sequence[bytes]]) -> list[bytes]: ...
    def send_packed_command(self, command: Sequence[bytes]) -> None: ...
    def read_response(self) -> Any: ...


def options_of_url(engine: Engine, url: str) -> tuple[Mapping[str, Any], bool]:
    """Connection options of a URL, and whether its writer sends WAITAOF (``?waitaof=yes``, ours).

    ValueError says nothing of the URL but its form, since it may hold a password.
    """
    locate.library("redis", engine.name, "redis")
    import redis.connection

    parse_url: Callable[[str], dict[str, Any]] = redis.connection.parse_url
    options: dict[str, Any] = {}
    said = ""
    try:
        url, said = _without_waitaof(urls.escaped(url))
        scheme, separator, rest = url.partition("://")
        options = parse_url(engine.schemes[scheme] + separator + rest)
        # A password with a slash that is not escaped ends up half in the host, which messages name, half in the path.
        readable = bool(urlsplit(url).hostname) and "@" not in urlsplit(url).path and said in ("", "yes", "no")
        _build({name: value for name, value in options.items() if name not in POOL_OPTIONS})
    except (KeyError, ValueError, TypeError):
        readable = False
    if not readable:
        message = (
            f"not a URL that the {engine.title} client can read; it has the form {engine.name}://user@host:port/0, "
            f"with ?waitaof=yes where the writer sends WAITAOF after each put, the password in {engine.password[0]}, "
            "or escaped (%40 for @)"
        )
        raise ValueError(message)
    options = {name: value for name, value in options.items() if name not in POOL_OPTIONS}
    return _with_password_of_environment(engine, options), said == "yes"


def _with_password_of_environment(engine: Engine, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """As the engine's own command line client takes it, where the URL has none."""
    given = next((found for name in engine.password if (found := os.environ.get(name))), None)
    return options if options.get("password") or not given else {**options, "password": given}


def _without_waitaof(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if WAITAOF not in parts.query:
        return url, ""
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    rest = [(name, value) for name, value in pairs if name != WAITAOF]
    return parts._replace(query=urlencode(rest)).geturl(), dict(pairs).get(WAITAOF, "")


def _build(options: Mapping[str, Any]) -> Connection:
    """A connection object that is not connected yet."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    fixed = {
        "retry": Retry(NoBackoff(), 0),  # the default sends a put again, up to ten times
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": min(HANDSHAKE_TIMEOUT_S, OPERATION_TIMEOUT_S),
        "decode_responses": False,
        "health_check_interval": 0,
        # To tell the server this library's version, its metadata is parsed at each connection: ten puts' time.
        **({"driver_info": None} if hasattr(redis, "DriverInfo") else {"lib_name": None, "lib_version": None}),
    }
    options = {**options, **fixed}
    make: Callable[..., Connection] = options.pop("connection_class", redis.Connection)
    return make(**options)


def connect(engine: Engine, options: Mapping[str, Any]) -> Connection:
    """One attempt; NotReady where waiting may help, ValueError where it cannot; the mend is a note of it."""
    locate.library("redis", engine.name, "redis")
    import redis
    from redis.exceptions import NoPermissionError

    port = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    place = f"{engine.title} at {port}"
    connection = _build(options)
    hopeless = passing = mend = ""
    try:
        connection.connect()
        _ping(connection)
        _wait_longer(connection)
    except redis.AuthenticationError:
        hopeless, mend = _authentication(engine, options)
    except redis.BusyLoadingError:
        passing, mend = "it is loading its data", "wait until it has loaded"
    except redis.TimeoutError:
        hopeless, passing, mend = _silence(engine, options)
    except (redis.ConnectionError, OSError) as error:
        hopeless, passing, mend = _no_connection(engine, options, error)
    except NoPermissionError:
        hopeless, mend = "this login may not even PING", f"ACL SETUSER {_user(options)} +ping +info +config|get"
    except redis.ResponseError:
        hopeless, mend = "it refuses this user or database", "correct user and database number"
    else:
        return connection
    # Raised outside of the handlers: the original, whose frames hold the password, is no context of it.
    connection.disconnect()
    failure: Exception = (
        ValueError(f"{place}: {hopeless}") if hopeless else NotReady(f"{place} is not ready: {passing}")
    )
    failure.add_note(mend)
    raise failure


def _ping(connection: Connection) -> None:
    """A server whose log or dump cannot be written refuses a PING as it does a write (MISCONF), and may be asked."""
    import redis

    try:
        call(connection, b"PING")
    except redis.ResponseError as error:
        if not str(error).startswith("MISCONF"):
            raise


def _wait_longer(connection: Connection) -> None:
    """From here on a put may take its time. The library has no door for it: its timeout is the socket's."""
    connection.socket_timeout = OPERATION_TIMEOUT_S
    connected: Any = vars(connection)["_sock"]
    connected.settimeout(OPERATION_TIMEOUT_S)


def _user(options: Mapping[str, Any]) -> str:
    return str(options.get("username") or "default")


def _authentication(engine: Engine, options: Mapping[str, Any]) -> tuple[str, str]:
    form = f"{engine.name}://user:password@host:port/0"
    if options.get("password"):
        return "authentication failed", f"correct user or password; the URL has the form {form}"
    return (
        "authentication failed: no password was given",
        f"put the password into {engine.password[0]}, or the URL: {form}",
    )


def _is_tls(options: Mapping[str, Any]) -> bool:
    return "SSL" in getattr(options.get("connection_class"), "__name__", "")


def _other_scheme(engine: Engine, options: Mapping[str, Any]) -> str:
    """The scheme of this engine that says the opposite about TLS."""
    wanted = "redis" if _is_tls(options) else "rediss"
    return next(ours for ours, theirs in engine.schemes.items() if theirs == wanted)


def _silence(engine: Engine, options: Mapping[str, Any]) -> tuple[str, str, str]:
    """Hopeless, passing and the mend, where nothing was heard."""
    other = f"{_other_scheme(engine, options)}://"
    if _is_tls(options) and _answers_plainly(options):
        return "TLS refused: no TLS at this port", "", f"without TLS use {other}"
    passing = f"no answer within {HANDSHAKE_TIMEOUT_S:g} s"
    without = "out" if _is_tls(options) else ""
    return "", passing, f"the server hangs, or something else listens there; a port with{without} TLS takes {other}"


def _answers_plainly(options: Mapping[str, Any]) -> bool:
    """Whether a PING without TLS has an answer: a server takes the greeting of TLS for a command, and waits for it."""
    address = (str(options.get("host", "localhost")), int(options.get("port", 6379)))
    try:
        with socket.create_connection(address, CONNECT_TIMEOUT_S) as asking:
            asking.sendall(b"PING\r\n")
            return asking.recv(1) in (b"+", b"-")
    except OSError:
        return False


def _no_connection(engine: Engine, options: Mapping[str, Any], error: Exception) -> tuple[str, str, str]:
    """Hopeless, passing and the mend, of a connection that did not come about."""
    said, tls = str(error).lower(), _is_tls(options)
    other = f"{_other_scheme(engine, options)}://"
    authority = "name the authority: ?ssl_ca_certs=/path/ca.pem; the certificate must name this host"
    host = "the host name is not known"
    lines: Sequence[tuple[bool, Sequence[str], tuple[str, str, str]]] = (
        (True, ("refused",), ("", "connection refused", "start the server, or correct host and port")),
        (True, ("certificate",), ("its TLS certificate is not accepted", "", authority)),
        (tls, ("ssl", "closed", "reset"), ("TLS refused: no TLS at this port", "", f"without TLS use {other}")),
        (not tls, (r"\x15\x03", "protocol error"), ("it wants TLS", "", f"use {other}")),
        (not tls, ("closed", "reset"), ("", "it closed the connection", f"if this port has TLS, use {other}")),
        (True, ("name or service", "resolution", "nodename"), ("", host, "correct the host")),
    )
    for applies, words, told in lines:
        if applies and any(word in said for word in words):
            return told
    return "", "no connection", "start the server, or correct host and port"


def call(connection: Connection, *command: bytes) -> Any:
    """Send one command and read its reply; a leaner way to the same socket than the client object's."""
    connection.send_command(*command)
    return connection.read_response()


def calls(connection: Connection, commands: Sequence[Sequence[bytes]]) -> list[Any]:
    """Send several commands in one go; an error of the server is the reply to its command."""
    connection.send_packed_command(connection.pack_commands(commands))
    return [_reply(connection) for _ in commands]


def _reply(connection: Connection) -> object:
    """The next reply of several; the server's errors are given back, so that the others are read too."""
    import redis

    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def prefix(namespace: str) -> bytes:
    """Where the keys of a namespace begin; escaped so that no two namespaces share a key and no glob means anything."""
    return f"{PREFIX}:{quote(namespace, safe='')}:".encode()


def scan(connection: Connection, beginning: bytes) -> Iterator[list[bytes]]:
    """Batches of the keys that begin with ``beginning``."""
    cursor = b"0"
    while True:
        cursor, keys = call(connection, b"SCAN", cursor, b"MATCH", beginning + b"*", b"COUNT", SCAN_COUNT)
        if keys:
            yield keys
        if int(cursor) == 0:
            return


def sizes_bytes(connection: Connection, beginning: bytes) -> Iterator[int]:
    """The size of every value whose key begins so; a key that goes away meanwhile counts nothing."""
    escaped = b"".join(b"\\" + bytes([one]) if one in b"*?[]\\" else bytes([one]) for one in beginning)
    seen: set[bytes] = set()
    for batch in scan(connection, escaped):
        for key in batch:
            if key in seen:
                continue
            seen.add(key)
            if call(connection, b"TYPE", key) in (b"string", "string"):
                yield int(call(connection, b"STRLEN", key))
            elif size := call(connection, b"MEMORY", b"USAGE", key):
                yield int(size)


def rewrite_log(connection: Connection, timeout_s: float) -> None:
    """Have the append-only file rewritten, and wait for that; TimeoutError.

    The server does the waiting: it is asked for an element of a list that is not there.
    """
    end = time.monotonic() + timeout_s
    if not _rewriting(connection):
        call(connection, b"BGREWRITEAOF")
    while _rewriting(connection):
        if time.monotonic() > end:
            message = f"the append-only file was not rewritten within {timeout_s:g} s"
            raise TimeoutError(message)
        call(connection, b"BLPOP", b"durabench:nothing", b"0.05")


def _rewriting(connection: Connection) -> bool:
    found = info(connection)
    return "1" in (found.get("aof_rewrite_in_progress"), found.get("aof_rewrite_scheduled"))


def info(connection: Connection) -> dict[str, str]:
    """INFO as names and values."""
    return parsed(call(connection, b"INFO"))


def parsed(text: bytes) -> dict[str, str]:
    """The reply to INFO as names and values."""
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)

"""A connection on which every exchange ends by a deadline, and what a server's or libpq's refusal means."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from durabench_backends.contract import NotReady, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import psycopg
    from psycopg.pq.abc import PGresult

OPERATION_TIMEOUT_S = 30.0
INSPECT_TIMEOUT_S = 5.0
"""For what only looks: a server that hangs is told while a person still waits."""


def connect(parameters: Mapping[str, Any], url: str, place: str, timeout_s: float | None = None) -> Session:
    """One attempt to connect; NotReady where waiting may help, another exception with its mend where it cannot."""
    import psycopg

    try:
        target = psycopg.conninfo.make_conninfo(url, **parameters)
        return Session(psycopg.connect(target, autocommit=True), place, timeout_s)
    except psycopg.Error as error:
        trouble = str(error)
    # Raised outside of the handler: the original, whose frames hold the connection string, is no context of it.
    raise refusal(trouble, place)


class Refusal(NamedTuple):
    """What words in a message of libpq, of a server or of a pooler mean, and what mends it."""

    words: str
    kind: type[Exception]
    meaning: str
    mend: str


REACH = "check host and port, and that a server listens there"
TLS = "set sslmode in the URL to what the server offers"
LOGIN = "check the user and the password (in the URL, PGPASSWORD or ~/.pgpass)"
WAIT = "try again when it is up"

REFUSALS = (
    # TLS before all that "does not exist": a missing certificate file is one.
    Refusal("root certificate", ConnectionError, "the file with the root certificate is missing",
            "name it with sslrootcert=FILE, or say sslrootcert=system"),
    Refusal("certificate verify failed", ConnectionError, "TLS: no root that is known here signed its certificate",
            "name the root with sslrootcert=FILE"),
    Refusal("server certificate for", ConnectionError, "TLS: its certificate is for another host name",
            "use the name that the certificate has"),
    Refusal("does not support SSL", ConnectionError, "it refuses TLS, which the URL requires",
            "turn ssl on at the server, or say sslmode=prefer"),
    Refusal("SSL required", ConnectionError, "it asks for TLS", "say sslmode=require"),
    Refusal("no encryption", PermissionError, "its pg_hba.conf refuses this host, user or database without TLS",
            "say sslmode=require, or add a line to its pg_hba.conf"),
    Refusal("pg_hba.conf", PermissionError, "its pg_hba.conf refuses this host, user or database",
            "add a line for them to its pg_hba.conf, then SELECT pg_reload_conf()"),
    Refusal("SSL error", ConnectionError, "TLS could not be agreed on", TLS),
    Refusal("SSL SYSCALL", ConnectionError, "TLS could not be agreed on", TLS),
    Refusal("no password supplied", PermissionError, "it asks for a password and the URL has none", LOGIN),
    Refusal("authentication failed", PermissionError, "authentication failed", LOGIN),
    Refusal("not permitted to log in", PermissionError, "the role may not log in", "ALTER ROLE … LOGIN"),
    Refusal("permission denied for database", PermissionError, "the role may not connect to the database",
            "GRANT CONNECT ON DATABASE … TO …"),
    Refusal("is not currently accepting connections", PermissionError, "the database accepts no connections",
            "ALTER DATABASE … ALLOW_CONNECTIONS true"),
    Refusal("no such user", PermissionError, "the pooler does not know the user", LOGIN),
    Refusal("no such database", LookupError, "the pooler does not know the database",
            "check the URL's path, or add the database to the pooler"),
    Refusal("unsupported startup parameter", ConnectionError, "the pooler refuses an option of the URL",
            "add it to the pooler's ignore_startup_parameters, or take options out of the URL"),
    Refusal("does not exist", LookupError, "the role or the database does not exist",
            "check both in the URL (a URL without a path asks for a database named like the user), or createdb"),
    Refusal("translate host name", ConnectionError, "the host name is unknown", "check the host in the URL"),
    Refusal("resolve host", ConnectionError, "the host name is unknown", "check the host in the URL"),
    Refusal("response to SSL negotiation", ConnectionError, "what listens there is no PostgreSQL", REACH),
    Refusal("expected authentication request", ConnectionError, "what listens there is no PostgreSQL", REACH),
    Refusal("unrecognized configuration parameter", ConnectionError, "the URL's options name an unknown parameter",
            "check options= in the URL, and PGOPTIONS"),
    Refusal("invalid", ConnectionError, "libpq cannot use a parameter of the URL", "check the parameters after the ?"),
    Refusal("Connection refused", NotReady, "connection refused", REACH),
    Refusal("No such file", NotReady, "no server has this socket", REACH),
    Refusal("starting up", NotReady, "it is starting up", WAIT),
    Refusal("shutting down", NotReady, "it is shutting down", WAIT),
    Refusal("in recovery mode", NotReady, "it is in recovery", WAIT),
    Refusal("not yet accepting connections", NotReady, "it is in recovery", WAIT),
    Refusal("too many", NotReady, "it has too many clients", "wait, or raise max_connections or the role's limit"),
    Refusal("connection slots", NotReady, "it has too many clients", "wait, or raise max_connections"),
    Refusal("timeout", NotReady, "no answer before the connection's timeout", REACH),
    Refusal("closed the connection", NotReady, "it closed the connection", REACH),
    Refusal("unreachable", NotReady, "the network does not reach it", REACH),
    Refusal("No route", NotReady, "the network does not reach it", REACH),
)  # fmt: skip
"""The first whose words are in the message holds. Their own words go no further: they may quote the URL."""


def refusal(trouble: str, place: str) -> Exception:
    """The exception that libpq's ``trouble`` stands for, with its mend as a note; unknown words are NotReady."""
    unknown = Refusal("", NotReady, "the connection failed", REACH)
    found = next((known for known in REFUSALS if known.words in trouble), unknown)
    ready = " is not ready" if found.kind is NotReady else ""
    made = found.kind(f"PostgreSQL at {place}{ready}: {found.meaning}")
    made.add_note(found.mend)
    return made


class Session:
    """A connection on which every exchange ends by a deadline.

    psycopg's own calls wait for ever on a server that hangs, so the exchange is made with its `psycopg.pq` layer:
    send, flush, poll, read. It is also the leanest way to a prepared statement.
    """

    def __init__(self, connection: psycopg.Connection[Any], place: str, timeout_s: float | None = None) -> None:
        self._connection = connection
        self._timeout_s = timeout_s or OPERATION_TIMEOUT_S
        self._cancels = timeout_s is not None  # whoever sets a deadline leaves nothing running behind it
        self._pgconn = connection.pgconn
        self._place = place
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._prepared = 0
        self._pooled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close; a server that went away in the middle is not ready."""
        self.close()
        if error is not None and went_away(error):
            late = isinstance(error, TimeoutError)
            message = str(error) if late else f"PostgreSQL at {self._place} went away: {type(error).__name__}"
            raise NotReady(message) from None

    def run(self, statements: str) -> None:
        """Run statements without parameters, one after the other, up to the first that fails."""
        self._pgconn.send_query(statements.encode())
        self._result()

    def rows(self, query: str, *parameters: bytes) -> list[list[str | None]]:
        """The rows of a query, as text."""
        self._pgconn.send_query_params(query.encode(), parameters)
        return _cells(self._result())

    def prepare(self, query: str) -> bytes:
        """Prepare a statement and give what `execute` takes: its name, or all of it behind a pooler, which may send the
        next statement to a process that has never heard the name.
        """
        self._prepared += 1
        name = b"" if self._pooled else f"durabench_{self._prepared}".encode()
        self._pgconn.send_prepare(name, query.encode())
        self._result()
        return name or query.encode()

    def execute(self, prepared: bytes, *parameters: bytes) -> PGresult:
        """Execute what was prepared; parameters and result are binary, so that no byte of a value is escaped."""
        formats = BINARY[: len(parameters)]
        if self._pooled:
            self._pgconn.send_query_params(prepared, parameters, param_formats=formats, result_format=1)
        else:
            self._pgconn.send_query_prepared(prepared, parameters, formats, 1)
        return self._result()

    def notice_pooler(self) -> None:
        """Find out whether a pooler stands before the server; asked before anything is prepared."""
        self._pooled = self.rows("SELECT pg_catalog.pg_backend_pid()")[0][0] != str(self.greeted_as)

    def script(self, statements: str) -> list[list[list[str | None]]]:
        """The rows of each of several statements without parameters, as text; up to the first that fails."""
        self._pgconn.send_query(statements.encode())
        return [_cells(result) for result in self._results()]

    def _result(self) -> PGresult:
        """The last result of what was sent; raises what the server's first error means."""
        results = list(self._results())
        if not results:
            raise _failure(None)
        return results[-1]

    def _results(self) -> Iterator[PGresult]:
        """Each result of what was sent; after the last, raises what the server's first error means."""
        pgconn, deadline = self._pgconn, time.monotonic() + self._timeout_s
        while pgconn.flush():
            self._wait(deadline, select.POLLIN | select.POLLOUT)
            pgconn.consume_input()  # a server with an answer to give may not read on before it is taken
        failed = None
        while True:
            while pgconn.is_busy():
                self._wait(deadline, select.POLLIN)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            if result.status in COMPLETE:
                yield result
            else:
                failed = failed or result
        if failed is not None:
            raise _failure(failed)

    def _wait(self, deadline: float, events: int) -> None:
        if events != select.POLLIN:
            self._poll.modify(self._pgconn.socket, events)
        ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if events != select.POLLIN:
            self._poll.modify(self._pgconn.socket, select.POLLIN)
        if not ready:
            if self._cancels:
                self.cancel()
            self.close()
            message = f"PostgreSQL at {self._place} did not answer within {self._timeout_s:g} s"
            raise TimeoutError(message)

    def cancel(self) -> None:
        """End what the server still does for this connection; a commit that waits for a standby ends only so."""
        import psycopg

        try:
            self._connection.cancel_safe(timeout=CANCEL_TIMEOUT_S)
        except psycopg.OperationalError:
            return  # it hangs or is gone: then there is nothing that could be ended from here

    @property
    def greeted_as(self) -> int:
        """The process that the other side named when it connected; a pooler names one of its own making."""
        return self._pgconn.backend_pid

    @property
    def from_here(self) -> bool:
        """Whether the other end of the connection has an address of this machine."""
        import ipaddress
        import socket

        with socket.socket(fileno=os.dup(self._pgconn.socket)) as copy:
            if copy.family == socket.AF_UNIX:
                return True
            there, own = copy.getpeername()[0], copy.getsockname()[0]
            return bool(ipaddress.ip_address(there).is_loopback) or there == own

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()


CANCEL_TIMEOUT_S = 1.0


def _cells(result: PGresult) -> list[list[str | None]]:
    cells = [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]
    return [[None if cell is None else cell.decode() for cell in row] for row in cells]


BINARY = (1, 1)
COMPLETE = (1, 2)
"""PGRES_COMMAND_OK and PGRES_TUPLES_OK, as numbers: psycopg is imported when it is used."""

CERTAIN = ("22", "23", "25", "2B", "3D", "3F", "42", "53", "54", "55")
"""Classes of SQLSTATE that end a statement before its transaction commits: it certainly did not happen."""


def _failure(result: PGresult | None) -> Exception:
    """What an error result means: Refused where the statement certainly did not happen, else psycopg's own class."""
    import psycopg
    from psycopg.pq import DiagnosticField

    if result is None:
        return psycopg.OperationalError("the server closed the connection without a result")
    state, severity, text = (
        (result.error_field(field) or b"").decode("utf-8", "replace")
        for field in (
            DiagnosticField.SQLSTATE,
            DiagnosticField.SEVERITY_NONLOCALIZED,
            DiagnosticField.MESSAGE_PRIMARY,
        )
    )
    message = f"{state}: {text}"
    if severity == "ERROR" and state[:2] in CERTAIN:
        return Refused(message)
    try:
        return psycopg.errors.lookup(state)(message)
    except KeyError:
        return psycopg.OperationalError(message if state else "the server closed the connection")


def went_away(error: BaseException) -> bool:
    """Whether the connection broke or the server ends or begins, rather than that it refused something."""
    import psycopg

    return isinstance(error, psycopg.OperationalError | TimeoutError)

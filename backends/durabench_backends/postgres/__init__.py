"""PostgreSQL: a server of ours or somebody's, what its settings promise, and whether a live one keeps to it.

`adapter` is the backend itself; `store` a namespace's table, `session` an exchange that ends by a deadline. `facts`
reads what a login's sessions get, `promises` says what that promises and `checks` what it means for a goal; `probe`
proves it by behaviour, `local` finds a server's processes on this machine, and `pages` explains every check.
"""

from durabench_backends.postgres.adapter import Postgres
from durabench_backends.postgres.store import PostgresStore

__all__ = ["Postgres", "PostgresStore"]

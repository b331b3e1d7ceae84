"""Redis and Valkey: one adapter, two names; a key per put, and for `waitaof` the server's word that it was flushed.

`promises` says what each engine's documentation promises; `wire` is one connection; `adapter` the two backends. For
`verify`: `facts` reads a server, `local` finds out what only its own machine knows, `checks` and `pages` say what that
means for a goal, `probe` asks by writing.
"""

from durabench_backends.redis.adapter import Redis, Valkey

__all__ = ["Redis", "Valkey"]

"""A page for every check of Redis and Valkey: what it is, what is lost otherwise, how to mend it, and the source."""

from __future__ import annotations

PROBES = ("redis.aof_growth", "redis.flush_latency", "redis.waitaof")
"""Checks that only writing can make."""

PERSISTENCE = "Redis documentation 8.2, Persistence"
CONF = "redis.conf 8.2 (valkey.conf 9.1 has the same words)"

PAGES = {
    "redis.appendonly": f"""Whether every write is appended to a log (the AOF) or only dumped now and then (RDB).

Lost otherwise: with `appendonly no` a server that dies loses everything since its last dump; by the shipped
save points that is up to an hour of checkpoints, and all of them where `save` is empty.

Mend: `redis-cli CONFIG SET appendonly yes`, then `redis-cli CONFIG REWRITE`; it counts once the first log is
written (INFO aof_rewrite_in_progress:0): a server that dies before comes up empty. Not by the file alone: a server
with data that is started with `appendonly yes` for the first time loads its log, which is empty, and not its
dump.

Source: {PERSISTENCE}, RDB disadvantages: "you should be prepared to lose the latest minutes of data"; How I can
switch to AOF.""",
    "redis.appendfsync": f"""When the log is flushed to the drive: `always` before each reply, `everysec` about once
a second by a thread, `no` when the kernel likes.

Lost otherwise: `everysec` loses the last second, two where a flush is slow: the write itself is then put off
after the reply, so that even a killed server loses it. `no` loses nothing with the server, and about thirty
seconds with the machine.

Mend: `redis-cli CONFIG SET appendfsync always`, then `redis-cli CONFIG REWRITE`; or keep everysec and accept
it: `--max-loss 2s`; or send `WAITAOF 1 0` after each put (Redis 7.2 and later, see redis.waitaof).

Source: {PERSISTENCE}, How durable is the append only file?; Diagnosing latency issues, Latency due to AOF and
disk I/O: "uses a buffer to delay the write(2) call up to two seconds".""",
    "redis.no_appendfsync_on_rewrite": f"""Whether the log is left unflushed while a child rewrites it or dumps.

Lost otherwise: with `yes`, for as long as a rewrite takes, `always` and `everysec` are `no`: what was
acknowledged in that time goes with the machine. A killed server loses nothing by it.

Mend: `redis-cli CONFIG SET no-appendfsync-on-rewrite no`, then `redis-cli CONFIG REWRITE`.

Source: {CONF}, no-appendfsync-on-rewrite: "the durability of Redis is the same as appendfsync no … it is
possible to lose up to 30 seconds of log in the worst scenario".""",
    "redis.config_rewrite": """Whether the configuration that runs is the one that the next start will have. CONFIG
SET changes the running server only; CONFIG REWRITE writes it down, and cannot where the server was started
without a file.

Lost otherwise: what was set at run time is undone by any restart. Where appendonly was, the server then loads
the dump instead of the log: everything since that dump is gone at once, and from then on nothing is logged. The
other way round, a file that says `appendonly yes` where the log is off, the next start loads a log that is not
there, and not the dump: everything is gone (tried with Redis 8.2.3 and Valkey 9.1.2).

How it is told: the file, where the server runs on this machine and the file may be read. Otherwise by INFO
commandstats, which counts CONFIG SET since the start (version 7 and later). Where neither tells anything it is
`skip`, because what runs was read and is what a crash meets first; where CONFIG SET was called and nothing was
written down it is `unknown`, and a `warn` where both were called, since their order is not told. A server without
a file that nobody changed is a `warn`: a start by hand, without its options, has the shipped settings; one whose
count CONFIG RESETSTAT removed is `unknown` where the shipped settings would not do.

Mend: `redis-cli CONFIG REWRITE`; without a file, start it with one, or put the options into the unit or compose
file.

Source: Redis documentation 8.2, CONFIG REWRITE; INFO, commandstats.""",
    "redis.maxmemory_policy": """What happens when `maxmemory` is reached: `noeviction` refuses writes,
`volatile-*` evicts keys with an expiry, `allkeys-*` evicts any.

Lost otherwise: with a limit and `allkeys-*`, checkpoints that were acknowledged disappear without any crash.

Mend: `redis-cli CONFIG SET maxmemory-policy noeviction`, then `redis-cli CONFIG REWRITE`. A cache and a store
of checkpoints do not belong into one server.

Source: Redis documentation 8.2, Key eviction, Eviction policies.""",
    "redis.expiry": """How many keys of this database have an expiry (INFO keyspace, expires).

Lost otherwise: a key that expires is deleted without any crash; under `volatile-*` keys with an expiry are also
evicted early. Whether those keys are checkpoints only their writer knows, so this is a `warn`.

Mend: write checkpoints without EX, PX or EXPIRE, or `redis-cli PERSIST KEY` for those that are there.

Source: Redis documentation 8.2, EXPIRE; INFO, keyspace.""",
    "redis.last_write_status": """Whether the last write to the log succeeded (INFO aof_last_write_status).

Lost otherwise: after an error (the disk is full, mostly) what the server has acknowledged since its last good
write is in memory only; further writes are refused until one succeeds.

Mend: make room on the disk of `CONFIG GET dir`; the server tries again by itself and says ok.

Source: Redis documentation 8.2, INFO, persistence.""",
    "redis.last_bgrewrite_status": """Whether the last rewrite of the log succeeded (INFO
aof_last_bgrewrite_status).

Lost otherwise: nothing by itself. A log that is never made shorter fills the disk, and then writes are refused.

Mend: see the server's log (memory for the child, room on the disk), then `redis-cli BGREWRITEAOF`.

Source: Redis documentation 8.2, Persistence, Log rewriting.""",
    "redis.rdb_last_bgsave_status": """Whether the last dump succeeded (INFO rdb_last_bgsave_status).

Lost otherwise: without the log it is the dump that survives, and it is getting old; with
`stop-writes-on-bgsave-error yes`, as shipped, writes are refused meanwhile.

Mend: see the server's log (memory for the child, room on the disk), then `redis-cli BGSAVE`.

Source: Redis documentation 8.2, INFO, persistence.""",
    "redis.replicas": """How many replicas are connected (INFO connected_slaves), and whether this server is one of
a cluster.

Lost otherwise: replication is asynchronous. Where a replica is promoted after a failure, what it had not
received is lost, however well the old master had flushed it. WAIT counts replicas that have received a write,
none that has flushed it; only `WAITAOF 1 N` asks for that.

Mend: `WAITAOF 1 1` after a put, and `min-replicas-to-write` to stop a master that is alone; neither is a
guarantee against a failover.

Source: Redis documentation 8.2, WAIT, Consistency and WAIT: "does not make Redis a strongly consistent store";
Replication.""",
    "redis.role": """Whether this server is a master (INFO role).

Lost otherwise: a replica refuses writes; one that was made writable drops its own at the next synchronisation.

Mend: verify the master; `redis-cli INFO replication` names it.

Source: Redis documentation 8.2, Replication, Read-only replica: "writes … will be discarded".""",
    "redis.loading": """Whether the server is still loading its data (INFO loading).

Lost otherwise: nothing; what is not loaded yet cannot be read.

Mend: wait until `redis-cli INFO persistence` says loading:0.

Source: Redis documentation 8.2, INFO, persistence.""",
    "redis.directory": """The folder of log and dump, and the file system below it, where the server runs on this
machine.

Lost otherwise: on a file system in memory (tmpfs) everything goes with the machine, whatever is flushed; in a
container's own layer (overlay) everything goes with the container; on a network file system a flush is what the
other side makes of it.

Mend: `dir` on a disk, in a container on a volume; then restart.

Source: tmpfs(5); overlayfs.rst; Redis documentation 8.2, Persistence.""",
    "redis.server_version": """The server's version, and what is known of it.

Lost otherwise: Valkey 8.1.8 and 9.1.2 were seen to answer WAITAOF under everysec before any flush, Redis 8.2.3
to wait for it. Before 7.2 there is no WAITAOF at all.

Mend: on Valkey, `appendfsync always` instead of WAITAOF. `--probe` shows what yours does.

Source: measured by this suite; valkey, src/aof.c, flushAppendOnlyFile.""",
    "redis.aof_growth": """Probe: whether the log has grown by what was put when the replies are there (INFO
aof_current_size).

Lost otherwise: a log that does not grow is not written: the server's death is enough to lose what it
acknowledged. Under `everysec` a write may be put off while a flush is slow.

Mend: see redis.appendonly and redis.last_write_status.

Source: Redis documentation 8.2, INFO, persistence.""",
    "redis.flush_latency": """Probe: what a SET takes beside a PING. Under `always` the difference holds a flush; a
drive takes 0.0016 ms (with power-loss protection) to 20 ms for one.

Lost otherwise: where SET is no slower than PING under `always`, nothing waited for a drive: a file system in
memory, a drive or a hypervisor that acknowledges flushes without doing them.

Mend: look at what is below `CONFIG GET dir`; `durabench doctor` measures the device where the server runs.

Source: measured by the probe itself.""",
    "redis.waitaof": """Probe: whether WAITAOF answers only after a flush. Under `everysec` there is at most one
flush a second (and one at either end), so more answers than that cannot all have waited.

Lost otherwise: a writer that takes the answer for a flush loses up to two seconds with the machine.

Mend: `appendfsync always`, or a server whose WAITAOF waits (seen: Redis 8.2.3 waits, Valkey 8.1.8 and 9.1.2 do
not).

Source: Redis documentation 8.2, WAITAOF: "guaranteed to be fsynced to the AOF"; measured by the probe itself.""",
}

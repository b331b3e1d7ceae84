"""A page for every check: what it is, what is lost otherwise, how to mend it, and where the documentation says so.

Sections are those of the PostgreSQL 18 documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WAL_FLUSH = "postgres.wal_flush"
COMMIT_LATENCY = "postgres.commit_latency"
PROBES = (WAL_FLUSH, COMMIT_LATENCY)


def _page(what: str, lost: str, mend: str, source: str) -> str:
    return f"{what}\n\nLost otherwise: {lost}\n\nMend: {mend}\n\nSource: PostgreSQL 18 documentation, {source}"


PAGES: Mapping[str, str] = {
    "postgres.server_version": _page(
        "Whether the server is PostgreSQL at all. Others speak its protocol or are made from it, and show its settings "
        "without doing what they say: CockroachDB, YugabyteDB, Redshift, Greenplum.",
        "what the documentation of that product says; nothing of what is promised here is known to hold for it.",
        "ask its vendor, or find out: durabench run --backend URL kills the writer, not the server.",
        "all sections named here are about PostgreSQL itself; System Information Functions, version().",
    ),
    "postgres.in_recovery": _page(
        "Whether the server is a standby. A standby takes no writes, and replays what its primary sends.",
        "nothing here: what an acknowledged commit is worth is decided where it is made, by the settings of the "
        "primary.",
        "verify the primary. A URL with both hosts finds it with target_session_attrs=primary.",
        "26.4 Hot Standby; 32.1.2 Parameter Key Words, target_session_attrs.",
    ),
    "postgres.synchronous_commit": _page(
        "Whether COMMIT returns before its record in the write-ahead log is flushed. The value shown is the one "
        "that sessions of this login get in this database, and the level that set it: the compiled default, a line "
        "of a file, the command line, all roles, the database, the role, the role in this database, the "
        "connection's options; the later wins. on, local, remote_write and remote_apply all wait for the local "
        "flush; they differ in what they ask of standbys, and mean the same where synchronous_standby_names is "
        "empty. A program may still SET its own value in its session or transaction, which nobody outside of it "
        "can see.",
        "with off, when the server process, the machine or its power dies: commits acknowledged in the last three "
        "times wal_writer_delay (0.6 s as shipped). What is lost is always the newest; nothing is torn or corrupt.",
        "set it where it was set, for instance ALTER ROLE app SET synchronous_commit = on; sessions that are open "
        "keep the old value. Where only some commits may be lost, leave it on, and SET LOCAL synchronous_commit = "
        "off there.",
        '19.5.1 Settings: "The maximum delay is three times wal_writer_delay"; 28.4 Asynchronous Commit; ALTER '
        "ROLE: a role's setting for a database overrides the others.",
    ),
    "postgres.fsync": _page(
        "Whether the server asks the operating system to bring its writes to the drive at all.",
        "with off, when the machine or its power dies: acknowledged commits of any age, and possibly the whole "
        "database, which may not start or may be silently inconsistent. A killed server loses nothing, so a kill "
        "cannot show it.",
        "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf(); then CHECKPOINT and run sync once, since what was "
        "written before was never flushed.",
        '19.5.1 Settings, fsync: "can result in unrecoverable data corruption in the event of a power failure or '
        'system crash".',
    ),
    "postgres.full_page_writes": _page(
        "Whether the first change of a page after a checkpoint puts the whole page into the log. A drive writes "
        "less at a time than the 8 KiB of a page, so that a power failure can tear one; recovery mends it from the "
        "log.",
        "with off, when the machine or its power dies: pages that were being written, with acknowledged rows of "
        "any age, are left half old and half new. Data checksums find such a page, and do not repair it.",
        "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf(). Only a file system that never tears a "
        "page, such as ZFS with records of 8 KiB or more, makes off safe; say so with --ignore "
        "postgres.full_page_writes=REASON.",
        "19.5.1 Settings, full_page_writes; 28.1 Reliability.",
    ),
    "postgres.unlogged_tables": _page(
        "Unlogged tables of this database. Their rows are not in the write-ahead log. Those that this login may "
        "write to, also as a role that it may become, fail the goal; others are a warning. Temporary tables do not "
        "count: nobody expects them to outlive their session.",
        "every row of such a table, whenever the server is not stopped in an orderly way, whatever the other "
        "settings are.",
        "ALTER TABLE name SET LOGGED, which writes the whole table once. For a cache that may go: --ignore "
        "postgres.unlogged_tables=REASON.",
        'CREATE TABLE, UNLOGGED: "an unlogged table is automatically truncated after a crash or unclean shutdown".',
    ),
    "postgres.wal_sync_method": _page(
        "The call that flushes the log. On Linux and the BSDs every method that the server offers reaches the "
        "drive and empties its write cache. On macOS only fsync_writethrough does, on Windows open_datasync does "
        "not.",
        "what is in the drive's own cache when its power fails.",
        "ALTER SYSTEM SET wal_sync_method = fsync_writethrough (macOS) or fsync (Windows); SELECT "
        "pg_reload_conf(). pg_test_fsync shows what each method costs, and one that is faster than the drive can "
        "be.",
        '28.1 Reliability: "On macOS, write caching can be prevented by setting wal_sync_method to '
        'fsync_writethrough".',
    ),
    "postgres.filesystem": _page(
        "The file system and mount options below the data directory, or below its log or a tablespace where that "
        "is on a weaker one. It is known only where the server runs on this machine and this login may ask for the "
        "data directory, or this user may look at the server's process; elsewhere the check is skipped.",
        "on tmpfs or ramfs: everything, when the machine dies. With nobarrier: what the drive's cache held when "
        "its power failed. On a network file system: what the file server acknowledged and had not written. In a "
        "container's own layer (overlay): everything, when the container is removed.",
        "put the data directory on a local file system with barriers, or on a volume. To let this login ask: GRANT "
        "pg_read_all_settings TO app.",
        "28.1 Reliability; 18.2.2.1 NFS; 22.6 Tablespaces; ext4(5) and proc(5) of Linux.",
    ),
    "postgres.mount_options": _page(
        "Mount options below the data directory, or below its log, that change what a flush does; seen from the "
        "server's own machine only.",
        "with nobarrier or barrier=0: what the drive's cache held when its power failed. With volatile (overlay): "
        "everything since the mount. With soft (nfs): a write that timed out is dropped.",
        "mount -o remount,barrier=1 and the like, and the same in /etc/fstab; nfs: mount it hard.",
        "28.1 Reliability; 18.2.2.1 NFS; ext4.rst and overlayfs.rst (Volatile mount) of the Linux kernel; nfs(5).",
    ),
    "postgres.write_cache": _page(
        "Whether the kernel sends flushes to the disk below the data directory. write back: it does. write through: "
        "it does not, because the disk said that it has no volatile cache; seen from the server's own machine only.",
        "with write through on a virtual disk whose host caches in memory: what that cache held when the host dies.",
        "let the hypervisor offer flushes: Firecracker cache_type Writeback, QEMU cache=writeback or none, not unsafe.",
        "28.1 Reliability; block/writeback_cache_control.rst of the Linux kernel.",
    ),
    "postgres.wal_writer_delay": _page(
        "How often the WAL writer flushes what asynchronous commits left behind. It matters only where "
        "synchronous_commit is off.",
        "three times this delay is the longest that an asynchronous commit may stay unflushed.",
        "ALTER SYSTEM SET wal_writer_delay = '50ms'; SELECT pg_reload_conf(). The goal's --max-loss must be at "
        "least three times the value.",
        "19.5.1 Settings, wal_writer_delay; 28.4 Asynchronous Commit.",
    ),
    "postgres.pooler": _page(
        "What stands between the client and its server process. Two connections are opened: if both are served by "
        "one process, or one of them by several, a pooler assigns processes by the transaction (or the statement). "
        "A pooler by the session shows by the process that it greets with.",
        "with pooling by the transaction a SET does not stick: a program that says SET synchronous_commit = on "
        "gets it for a transaction of whoever comes next, and its own commits run with whatever another client "
        "left behind.",
        "set what matters for the role or the database (ALTER ROLE … SET), or in each transaction (SET LOCAL), or "
        "pool by the session with server_reset_query = DISCARD ALL.",
        "SET: its effects last until the end of the session, which behind such a pooler is not the client's; "
        "PgBouncer, features: SET/RESET are not supported in transaction pooling.",
    ),
    "postgres.db_role_setting": _page(
        "Settings of synchronous_commit that are stored for roles and databases. This check is about other logins; "
        "what holds for this one is in postgres.synchronous_commit.",
        "commits of the roles or databases that are named, if a program of yours uses those instead of this login.",
        "ALTER ROLE name RESET synchronous_commit, or verify with that login.",
        "System Catalogs, pg_db_role_setting; ALTER ROLE; ALTER DATABASE.",
    ),
    "postgres.file_settings": _page(
        "Whether the configuration files say what is in force. A file that was edited and not read again takes "
        "effect at the next reload or restart, wanted or not; a line with an error keeps a server from starting.",
        "nothing now. After the next reload, what the check shows is in force.",
        "SELECT pg_reload_conf() brings the files into force. To let this login look: GRANT SELECT ON "
        "pg_catalog.pg_file_settings TO app; GRANT EXECUTE ON FUNCTION pg_catalog.pg_show_all_file_settings() TO "
        "app.",
        "System Views, pg_file_settings; 19.1.2 Parameter Interaction via the Configuration File.",
    ),
    "postgres.pending_restart": _page(
        "Settings that were changed in a file, and that only a restart brings into force.",
        "nothing now. The next restart, orderly or not, brings them into force.",
        "restart the server at a time of your choosing, or take the change back.",
        "System Views, pg_settings, pending_restart.",
    ),
    "postgres.synchronous_standby_names": _page(
        "Which standbys a commit waits for. Empty: none, and synchronous_commit = on, local, remote_write and "
        "remote_apply are the same. Named but not connected: COMMIT does not return, and a statement_timeout does "
        "not end it; when it is cancelled the commit is there locally.",
        "nothing on this server: a commit waits for the local flush as well. A failover to a standby that was not "
        "waited for loses what that one had not received.",
        "connect the standby, or ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf().",
        "19.6.2 Primary Server, synchronous_standby_names; 26.2.8 Synchronous Replication.",
    ),
    "postgres.replication": _page(
        "The standbys that are connected, and which of them are synchronous. Their state shows only to members of "
        "pg_read_all_stats.",
        "nothing on this server; what a failover loses is no part of the goal.",
        "to let this login look: GRANT pg_read_all_stats TO app.",
        "27.2.4 pg_stat_replication; 21.5 Predefined Roles.",
    ),
    "postgres.data_checksums": _page(
        "Whether every page carries a checksum. Since version 18 a new cluster has them.",
        "nothing by itself. A page that the drive damages, or a power failure tears, is read as if it were good.",
        "stop the server and run pg_checksums --enable -D DATA_DIRECTORY.",
        "28.2 Data Checksums; pg_checksums; initdb, --data-checksums.",
    ),
    "postgres.data_sync_retry": _page(
        "What happens when a flush of a data file fails. Off: the server stops at once and recovers from its log. "
        "On: it reports an error and tries again. A failed flush of the log always stops it.",
        "with on, or before version 11.2: Linux forgets a page whose write failed, so the second fsync reports "
        "success and the acknowledged data is gone.",
        "ALTER SYSTEM RESET data_sync_retry, and restart the server.",
        "19.14 Error Handling, data_sync_retry.",
    ),
    "postgres.wal_level": _page(
        "How much the log holds. minimal is enough for recovery after a crash; replica and logical feed standbys "
        "and archives.",
        "nothing on this server. With minimal there can be neither a standby nor an archive to go back to.",
        "ALTER SYSTEM SET wal_level = replica, and restart the server.",
        "19.5.1 Settings, wal_level.",
    ),
    "postgres.commit_delay": _page(
        "How long a commit's flush is held back so that others may share it. It costs latency.",
        "nothing: the commit is acknowledged after the flush.",
        "ALTER SYSTEM RESET commit_delay; SELECT pg_reload_conf().",
        "19.5.1 Settings, commit_delay; 28.5 WAL Configuration.",
    ),
    WAL_FLUSH: _page(
        "Whether COMMIT really returns after its flush (--probe). Each round commits a record, reads the log "
        "position before COMMIT and the flushed position right after it. Behind once proves that it does not wait. "
        "Never behind proves nothing by itself on a busy server, whose other commits flush this one along: so "
        "every round is paired with one under the opposite setting, and only where asynchronous ones are seen "
        "behind does the absence count.",
        "commits that were acknowledged and not flushed, when the server dies.",
        "see postgres.synchronous_commit.",
        "9.28.3 Backup Control Functions, pg_current_wal_flush_lsn, pg_current_wal_insert_lsn; 28.4 Asynchronous "
        "Commit.",
    ),
    COMMIT_LATENCY: _page(
        "What a commit costs with its flush and without, as this client sees it (--probe), in pairs, so that both "
        "meet the same load. A flush is 0.5 to 6 ms on consumer drives, microseconds on drives with power-loss "
        "protection.",
        "nothing. Where both take the same time on a drive without power-loss protection, something below the "
        "server acknowledges flushes that it does not do.",
        "compare with pg_test_fsync in the data directory's file system, and with durabench doctor.",
        "pg_test_fsync; 28.1 Reliability.",
    ),
}
"""Id of every check → its page."""

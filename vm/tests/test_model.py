"""File calls recorded without a machine, and the model of what a file system may have lost."""

from __future__ import annotations

import json
import os
import platform
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
import reality
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modelled import HEAD, NEW, OLD, Recorded, record, run

from durabench_model import kernel
from durabench_model.folder import Folder, copy_base, differences
from durabench_model.log import HEAD as ENTRY_HEAD
from durabench_model.log import Kind, Log, LogError
from durabench_model.recorder import COULD_NOT, Calls
from durabench_model.rules import Model, sample
from durabench_model.states import NEEDS_COMMIT, Class, Profile, State

HARD_CASES = Path(__file__).with_name("programs") / "hard_cases.py"
NOBODY = 65534
EVERY = [each for each in Class if each is not Class.MASK]


# --- what may be there: the textbook

TEXTBOOK = {  # what was there before, what is done, what POSIX allows, what ext4 allows
    "in place, new name": ("", "put('f', NEW)", "absent EMPTY NULs part new", "absent EMPTY NULs part new"),
    "in place, old name": (
        *("old", "put('f', NEW)"),
        *("old EMPTY NULs part new old+NULs", "old EMPTY new"),  # close after O_TRUNC writes before it commits
    ),
    "rename to a new name": (
        *("", "put('t', NEW); os.rename('t', 'f')"),
        *("absent EMPTY NULs part new", "absent EMPTY NULs part new"),
    ),
    "rename over an old name": (
        *("old", "put('t', NEW); os.rename('t', 'f')"),
        *("old EMPTY NULs part new", "old new"),  # auto_da_alloc
    ),
    "fsync, rename to a new name": (
        *("", "put('t', NEW, sync=True); os.rename('t', 'f')"),
        *("absent new", "absent new"),
    ),
    "fsync, rename over an old name": (
        *("old", "put('t', NEW, sync=True); os.rename('t', 'f')"),
        *("old new", "old new"),
    ),
    "fsync, rename, fsync of the folder": (
        *("old", "put('t', NEW, sync=True); os.rename('t', 'f'); sync_dir()"),
        *("new", "new"),
    ),
    "rename, fsync of the folder": (
        *("", "put('t', NEW); os.rename('t', 'f'); sync_dir()"),
        *("EMPTY NULs part new", "EMPTY NULs part new"),
    ),
    "new file, fsync": ("", "put('f', NEW, sync=True)", "absent new", "new"),
    "append": ("old", "put('f', NEW, APPEND)", "old part new old+NULs", "old part new old+NULs"),
    "append in the last block, somebody's fsync": (
        *("old", "put('f', NEW[:100], APPEND); put('g', b'x', sync=True)"),
        *("old new old+NULs", "new old+NULs"),  # the size is in the journal, the bytes are not
    ),
    "append over the last block, somebody's fsync": (
        *("old", "put('f', NEW, APPEND); put('g', b'x', sync=True)"),
        *("old part new old+NULs", "old part new old+NULs"),
    ),
    "overwrite two pages": ("old", "put('f', NEW[:6000], OVER)", "old part new", "old part new"),
    "overwrite two pages, fsync": ("old", "put('f', NEW[:6000], OVER, sync=True)", "new", "new"),
    "fallocate, fsync, write": (
        *("", "f = os.open('f', 65); os.posix_fallocate(f, 0, 8192); os.fsync(f); sync_dir(); os.write(f, NEW[:6000])"),
        *("NULs part new", "NULs part new"),
    ),
    "unlink": ("old", "os.unlink('f')", "old absent", "old absent"),
    "unlink, fsync of the folder": ("old", "os.unlink('f'); sync_dir()", "absent", "absent"),
    "a folder, a file in it with fsync, fsync of the folder": (
        *("", "os.mkdir('d'); put('d/f', NEW, sync=True); sync_dir('d'); os.symlink('d/f', 'f')"),
        *("absent link", "absent link"),
    ),
}
GOOD = (NEW, NEW[:6000], OLD + NEW, OLD + NEW[:100], NEW[:6000] + bytes(2192))


def word(item) -> str:
    if item is None:
        return "absent"
    if stat.S_ISLNK(item.mode):
        return "link"
    data = item.content()
    for name, those in (("EMPTY", (b"",)), ("old", (OLD,)), ("new", GOOD)):
        if data in those:
            return name
    if not data.strip(b"\0"):
        return "NULs"
    return "old+NULs" if data.rstrip(b"\0") == OLD else "part"


@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook(name, tmp_path):
    before, code, posix, ext4 = TEXTBOOK[name]
    made = record(tmp_path, code, before={"f": OLD} if before else {})
    for profile, allowed in ((Profile.POSIX, posix), (Profile.EXT4, ext4)):
        seen = {word(tree.items.get("f")) for tree in made.trees(profile, draws=40)}
        assert seen == set(allowed.split()), profile


def test_under_posix_a_folder_needs_its_parent_and_under_ext4_a_file_brings_all_names(tmp_path):
    made = record(tmp_path, "os.mkdir('d'); put('d/f', NEW, sync=True); sync_dir('d')")
    least = State(len(made.log) - 1, Class.NONE)
    assert not made.model(Profile.POSIX).build(least).items
    assert made.model(Profile.EXT4).build(least).items["d/f"].content() == NEW


def test_of_two_writes_to_one_page_the_older_never_wins(tmp_path):
    made = record(tmp_path, "put('f', b'1' * 4096, OVER); put('f', b'2' * 4096, OVER)", before={"f": b"0" * 4096})
    for profile in Profile:
        for tree in made.trees(profile):
            pages = tree.items["f"].content()
            assert all(pages[i : i + 512] in (b"0" * 512, b"1" * 512, b"2" * 512) for i in range(0, 4096, 512))
        only_first = {made.model(profile).build(State(len(made.log), Class.ONLY, seed)).digest() for seed in range(20)}
        assert len(only_first) == 2  # the first alone, and the second, in which the first is whole


def test_states_are_named_and_can_be_made_again(tmp_path):
    made = record(tmp_path, "put('f', NEW); put('g', OLD); os.rename('g', 'h')")
    for profile in Profile:
        states = sample(made.model(profile), 60, seed=3)
        assert states == sample(made.model(profile), 60, seed=3) == sorted(states)
        forwards = [made.model(profile).build(state).digest() for state in states]
        model = made.model(profile)
        assert forwards[::-1] == [model.build(state).digest() for state in states[::-1]]


def test_draws_are_distinct_and_small_spaces_are_counted(tmp_path):
    made = record(tmp_path, "put('a', b'1'); put('b', b'2')")  # under POSIX: names and bytes, each there or not
    model, end = made.model(Profile.POSIX), len(made.log)
    digests = [tree.digest() for _, tree in model.draw(end, Random(1))]
    assert len(digests) == len(set(digests))
    assert model.count(end) == 9  # a and b: absent, empty, whole
    assert 9 < len(digests) <= 16  # … or a size without its bytes


def test_more_open_changes_than_can_be_counted_are_not_counted(tmp_path):
    made = record(tmp_path, "[put(str(i), b'x') for i in range(9)]")
    assert made.model(Profile.POSIX).count(len(made.log)) is None


def test_a_lie_loses_even_what_was_flushed(tmp_path):
    made = record(tmp_path, "put('t', NEW, sync=True); os.rename('t', 'f'); sync_dir(); mark(1)")
    for profile in Profile:
        end = len(made.log)
        assert Model(made.log, made.base, profile).build(State(end, Class.NONE)).items["f"].content() == NEW
        assert not Model(made.log, made.base, profile, lie_from=1).build(State(end, Class.NONE)).items


def test_after_a_failed_flush_a_later_one_does_not_cover_what_was_before(tmp_path):
    code = """
f = os.open('f', OVER)
os.write(f, b'1' * 4096)
try:
    os.fsync(f)
except OSError as error:
    assert error.errno == 5
os.write(f, b'2' * 4096)
os.fsync(f)
"""
    made = record(tmp_path, code, "--fail-flush", "1", before={"f": b"0" * 8192})
    for profile in Profile:
        seen = {tree.items["f"].content()[::4096] for tree in made.trees(profile)}
        assert seen == {b"02", b"12"}, profile


def test_a_full_disk_is_an_error_of_one_write(tmp_path):
    made = record(tmp_path, "try: put('f', NEW)\nexcept OSError as e: put('g', b'%d' % e.errno)", "--fail-write", "1")
    assert (made.root / "g").read_bytes() == b"28"
    assert differences(made.model(Profile.POSIX).build(State(len(made.log), Class.ALL)), made.root) == []


# --- somebody else's commit

SERVER = (
    "put('log', b'', sync=True); sync_dir(); f = os.open('log', APPEND); put('other', b'0', sync=True); sync_dir()\n"
)
LONELY = SERVER + "for i in range(4):\n os.write(f, b'%d' % i * 1500); os.fdatasync(f); mark(i)"
WITH_NEIGHBOUR = SERVER + (
    "for i in range(4):\n os.write(f, b'%d' % i * 1500); put(f'new{i}', b'x', sync=True); os.fdatasync(f); mark(i)"
)


def ends_in_nuls(made: Recorded, **options: bool) -> set[str]:
    """What is needed for a log that ends in NULs, over all positions."""
    found = set()
    for position in range(made.log.gaps()[0].last, len(made.log)):
        for tree in made.trees(Profile.EXT4, position, draws=6, **options):
            if tree.items["log"].content().endswith(b"\0"):
                found.add(tree.needs)
    return found


def test_a_log_alone_does_not_end_in_nuls_and_with_a_neighbour_it_does(tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "two").mkdir()
    alone, two = record(tmp_path / "alone", LONELY), record(tmp_path / "two", WITH_NEIGHBOUR)
    assert ends_in_nuls(alone, neighbours=False) == set()
    assert ends_in_nuls(alone) == {NEEDS_COMMIT}
    assert "" in ends_in_nuls(two, neighbours=False)


def test_a_slow_flush_covers_what_was_there_when_it_was_asked_for_and_a_neighbour_commits_meanwhile(tmp_path):
    code = SERVER + (
        "if os.fork() == 0:\n"
        "    for i in range(400): put(f'n{i}', b'x', sync=True)\n"
        "    os._exit(0)\n"
        "for i in range(12): os.write(f, b'%d' % (i % 10) * 700); os.fdatasync(f); mark(i)\n"
    )
    for attempt in range(6):  # whose commit falls into whose flush is for the machine to say
        where = tmp_path / str(attempt)
        where.mkdir()
        made = record(where, code, "--flush-delay", "0.004")
        if "" in ends_in_nuls(made, neighbours=False):
            break
    flushes = [(i, e) for i, e in enumerate(made.log.entries) if e.kind is Kind.FLUSH]
    assert all(0 < entry.b <= index for index, entry in flushes)
    assert any(entry.b < index for index, entry in flushes), "nobody did anything meanwhile"
    assert "" in ends_in_nuls(made, neighbours=False)
    for gap in made.log.gaps():
        wanted = b"".join(b"%d" % (i % 10) * 700 for i in made.log.acknowledged(gap.last))
        for profile in Profile:
            for tree in made.trees(profile, gap.last, draws=2):
                assert not wanted or tree.items["log"].content().startswith(wanted)


def test_what_was_acknowledged_is_there_with_and_without_neighbours(tmp_path):
    for code in (LONELY, WITH_NEIGHBOUR):
        where = tmp_path / str(len(code))
        where.mkdir()
        made = record(where, code)
        for profile in Profile:
            for gap in made.log.gaps():
                wanted = b"".join(b"%d" % i * 1500 for i in made.log.acknowledged(gap.last))
                for tree in made.trees(profile, gap.last, draws=4):
                    assert not wanted or tree.items["log"].content().startswith(wanted)


def test_after_five_seconds_the_journal_commits_by_itself(tmp_path):
    made = record(tmp_path, "put('f', NEW); import time; time.sleep(5.2); put('g', NEW)")
    after = next(i for i, e in enumerate(made.log.entries) if e.kind is Kind.CREATE and b"g" in made.log.data(e))
    model = made.model(Profile.EXT4, neighbours=False)
    early = {word(model.build(State(after - 1, kind, 1)).items.get("f")) for kind in EVERY if kind is not Class.ALL}
    late = {word(model.build(State(after + 1, kind, 1)).items.get("f")) for kind in EVERY if kind is not Class.ALL}
    assert early == {"absent"}
    assert {"absent", "EMPTY"} <= late


# --- what was recorded is what happened


def test_hard_cases_are_explained_byte_for_byte(tmp_path):
    root, base, log = tmp_path / "root", tmp_path / "base", tmp_path / "log"
    root.mkdir()
    copy_base(root, base)
    done = run(root, log, "--", sys.executable, str(HARD_CASES), str(root))
    made = Log.load(log)
    assert (done.returncode, made.exit) == (0, (0, "")), done.stderr
    assert list(made.notes()) == ["mapped shared and writable: seen at flushes and marks only, in no order"]
    for profile in Profile:
        assert differences(Model(made, base, profile).build(State(len(made), Class.ALL)), root) == []


NAMES = st.sampled_from(["a", "b", "d/a", "d/b"])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 9000), st.booleans()),
    st.tuples(st.just("append"), NAMES, st.integers(1, 9000)),
    st.tuples(st.just("patch"), NAMES, st.integers(0, 9000), st.integers(1, 5000)),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.just("unlink"), NAMES),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 9000)),
    st.tuples(st.just("chmod"), NAMES),
    st.tuples(st.just("sync"), NAMES),
    st.tuples(st.just("sync_dir"), st.sampled_from([".", "d"])),
)
INTERPRETER = """
import ast
number = 0
os.mkdir('d')
for verb, *rest in ast.literal_eval(sys.argv[1]):
    number += 1
    fill = bytes([number])
    try:
        if verb == 'put': put(rest[0], fill * rest[1], sync=rest[2])
        elif verb == 'append': put(rest[0], fill * rest[1], APPEND)
        elif verb == 'patch':
            fd = os.open(rest[0], OVER)
            os.pwrite(fd, fill * rest[2], rest[1])
            os.close(fd)
        elif verb == 'chmod': os.chmod(rest[0], 0o600 + number % 64)
        elif verb == 'sync':
            fd = os.open(rest[0], os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        elif verb == 'sync_dir': sync_dir(rest[0])
        else: getattr(os, verb)(*rest)
    except OSError: pass
mark('before')
os.sync()
mark('after')
"""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATIONS, min_size=1, max_size=12))
def test_whatever_is_done_the_log_explains_it_and_a_sync_keeps_it(tmp_path_factory, operations):
    where = tmp_path_factory.mktemp("any")
    root, base, log = where / "root", where / "base", where / "log"
    root.mkdir()
    (root / "a").write_bytes(OLD)
    copy_base(root, base)
    done = run(root, log, "--", sys.executable, "-c", HEAD + INTERPRETER, repr(operations), cwd=root)
    made = Log.load(log)
    assert made.exit == (0, ""), done.stderr
    before, after = (gap.first for gap in made.gaps()[1:])
    for profile in Profile:
        model = Model(made, base, profile)
        everything = model.build(State(before, Class.ALL))
        assert differences(everything, root) == []
        for kind in EVERY:
            tree = model.build(State(before, kind, len(operations)))
            with_everything_there = {path.rpartition("/")[2] for path in everything.items}
            assert {path.rpartition("/")[2] for path in tree.items} <= {"a", "b", "d"} | with_everything_there
        for kind in EVERY:
            assert model.build(State(after, kind, 7)).digest() == everything.digest(), (profile, kind)


def test_a_folder_takes_on_states_and_mends_what_a_reader_did(tmp_path):
    made = record(tmp_path, "put('f', NEW); os.mkdir('d'); os.symlink('f', 'l'); os.setxattr('f', 'user.x', b'1')")
    folder = Folder(tmp_path / "laid")
    for profile in Profile:
        model = made.model(profile)
        for state in sample(model, 60, seed=5):
            tree = model.build(state)
            folder.take_on(tree)
            assert differences(tree, folder.path) == []
            for path in tree.items:
                if path == "f":
                    (folder.path / path).write_bytes(b"a reader was here")
            (folder.path / "sidecar").write_bytes(b"and left this")
    tree = model.build(State(len(made.log), Class.ALL))
    folder.take_on(tree)
    assert os.getxattr(folder.path / "f", "user.x") == b"1"
    written = folder.written_bytes
    folder.take_on(tree)
    assert folder.written_bytes == written, "what did not differ was written again"


def test_marks_gaps_and_positions(tmp_path):
    made = record(tmp_path, "mark('one'); put('f', NEW); mark({'two': 2})").log
    gaps = made.gaps()
    assert [gap.number for gap in gaps] == [0, 1, 2]
    assert [made.acknowledged(gap.last) for gap in gaps] == [(), ("one",), ("one", {"two": 2})]
    assert [made.gap(gap.first) for gap in gaps] == [0, 1, 2]
    assert made.gaps(gaps[1].first + 1, gaps[1].last) == (gaps[1]._replace(first=gaps[1].first + 1),)
    assert (gaps[0].first, gaps[-1].last) == (1, len(made))


def test_a_line_on_stdout_is_a_mark_where_it_was_printed(tmp_path):
    code = "put('f', NEW); print('acknowledged 1', flush=True); put('g', NEW); print('noise', flush=True)"
    made = record(tmp_path, code, "--acknowledged", "^acknow")
    assert made.log.acknowledged(len(made.log)) == ("acknowledged 1",)
    model = made.model(Profile.POSIX)
    assert set(model.build(State(made.log.gaps()[1].first, Class.ALL)).items) == {"f"}


# --- a log and its file


def test_a_torn_log_is_read_up_to_where_it_is_torn(tmp_path):
    made = record(tmp_path, "put('f', NEW); put('g', OLD)")
    path = tmp_path / "log"
    whole = path.read_bytes()
    last = made.log.entries[-1]
    for cut in (last.at - 1, last.at - ENTRY_HEAD.size, last.at - ENTRY_HEAD.size - 3):
        path.write_bytes(whole[:cut])
        torn = Log.load(path)
        assert torn.entries == made.log.entries[: len(torn)]
        assert len(torn) in (len(made.log) - 1, len(made.log) - 2)
        assert torn.exit is None
    path.write_bytes(whole[: last.at] + bytes(500))
    assert Log.load(path).entries[: len(made.log)] == made.log.entries


@pytest.mark.parametrize("content", [b"", b"no log", b"DURABENCH-FILES-2\n", b"DURABENCH-FILES-2\n\x02\0\0\0{}"])
def test_what_is_no_log_is_said(content, tmp_path):
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(LogError, match="log"):
        Log.load(tmp_path / "log")


# --- where it works, and how it ends


def test_it_works_here_and_every_call_has_a_number_and_a_handler():
    assert kernel.why_not() is None
    for machine in kernel.ARCHITECTURES.values():
        assert [name for name in machine.numbers if not hasattr(Calls, name)] == []
        assert set(kernel._blocks()) >= set(machine.numbers)
        assert len(kernel.filter_program(machine)) % 8 == 0
        assert len(machine.numbers) == len(set(machine.numbers.values()))


def test_a_foreign_machine_is_said(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert kernel.why_not() == "calls can be recorded on x86_64 and aarch64, not on riscv64"


def test_no_capability_is_needed(tmp_path):
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    code = HEAD + "put('f', NEW, sync=True); os.chmod('f', 0o600)"
    command = [sys.executable, "-m", "durabench_model.recorder", str(root), str(log), "--", sys.executable, "-c", code]
    done = subprocess.run([*bare, *command], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert Log.load(log).exit == (0, "")
    assert Kind.FLUSH in {entry.kind for entry in Log.load(log).entries}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_as_root_a_program_keeps_its_own_rights_and_umask(tmp_path):
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir(mode=0o755)
    (root / "open").mkdir()
    os.chown(root / "open", NOBODY, NOBODY)
    for each in [tmp_path, *tmp_path.parents]:
        each.chmod(each.stat().st_mode | 0o055)
    code = (
        HEAD
        + "os.umask(0o027); os.setgroups([]); os.setgid(65534); os.setuid(65534); put('open/f', NEW)\n"
        + "try: put('closed', NEW)\nexcept PermissionError: put('open/refused', b'')"
    )
    done = run(root, log, "--", sys.executable, "-c", code, cwd=root)
    assert Log.load(log).exit == (0, ""), done.stderr
    found = (root / "open/f").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (NOBODY, NOBODY, 0o640)
    assert (root / "open/refused").exists()
    assert not (root / "closed").exists()


def test_the_programs_end_when_the_log_is_full_or_time_is_up(tmp_path):
    endless = HEAD + "if os.fork() == 0:\n  while True: put('f', NEW)\nwhile True: put('g', NEW)"
    for options, why in (
        (["--limit-bytes", "200000"], "the log reached its limit of 0 MiB"),
        (["--deadline", "1"], "it did not end within 1 s"),
    ):
        root, log = tmp_path / options[0], tmp_path / "log"
        root.mkdir()
        done = run(root, log, *options, "--", sys.executable, "-c", endless, cwd=root)
        assert done.returncode == 0, done.stderr
        made = Log.load(log)
        assert made.exit == (-signal.SIGKILL, why)
        assert len(made) > 10, "what came before is there"


def test_no_room_for_the_log_is_said_and_is_no_error_of_the_programs(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    code = HEAD + "import time\nfor i in range(400): put('f', NEW)\nput('done', b'')"
    done = run(root, Path("/dev/full"), "--", sys.executable, "-c", code, cwd=root)
    assert done.returncode == COULD_NOT
    assert done.stderr == (
        "recorder: the log /dev/full cannot be written: No space left on device; set TMPDIR to where there is room\n"
    )
    assert not (root / "done").exists()


@pytest.mark.parametrize("who", ["recorder", "watcher", "caller"])
def test_killing_any_of_us_leaves_nothing(who, tmp_path):
    """A program whose orphan sleeps, and whose child stands in a call at the moment of the kill."""
    root = tmp_path / "root"
    root.mkdir()
    tag = f"durabench-test-{os.getpid()}-{time.monotonic_ns()}"
    code = HEAD + (
        "import time, subprocess\n"
        "if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  if os.fork() == 0: time.sleep(600)\n"
        "  os._exit(0)\n"
        "if os.fork() == 0:\n"
        "  while True: put('g', NEW)\n"
        "put('ready', b'')\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "durabench_model.recorder", str(root), str(tmp_path / "log"), "--"]
    caller = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    started = subprocess.Popen([sys.executable, "-c", caller, *command, sys.executable, "-c", code, tag], cwd=root)
    try:
        until((root / "ready").exists)
        (watcher,) = kernel.children(started.pid)
        (recorder,) = kernel.children(watcher)
        pid = {"recorder": recorder, "watcher": watcher, "caller": started.pid}[who]
        until(lambda: len(tagged(tag)) >= 6)
        os.kill(pid, signal.SIGKILL)
        until(lambda: [each for each in tagged(tag) if each != started.pid] == [])
    finally:
        started.kill()
        started.wait()


def tagged(tag: str) -> list[int]:
    """The living processes with a word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                alive = "\nState:\tZ" not in (entry / "status").read_text()
                if alive and tag.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def until(true) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_program_that_does_not_start_is_said(tmp_path):
    (tmp_path / "root").mkdir()
    done = run(tmp_path / "root", tmp_path / "log", "--", str(tmp_path / "no-such"))
    assert done.stderr == f"{tmp_path}/no-such: No such file or directory\n"
    assert Log.load(tmp_path / "log").exit == (127, "")


def test_under_another_supervisor_it_says_so(tmp_path):
    """A listener is already there: the recorder is itself recorded."""
    root = tmp_path / "root"
    root.mkdir()
    inner = [sys.executable, "-m", "durabench_model.recorder", str(root), str(tmp_path / "inner"), "--", "true"]
    done = run(root, tmp_path / "log", "--", *inner)
    assert "another supervisor" in done.stderr
    assert Log.load(tmp_path / "log").exit == (COULD_NOT, "")


# --- held against a real ext4 (`reality.py` does thousands, `reality.json` is what it saw)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a loop device")
@pytest.mark.parametrize("writer", reality.WRITERS)
def test_what_an_ext4_holds_is_a_state_of_the_model(writer, tmp_path):
    seen = [kind for seed in (101, 102) for kind in reality.cases(writer, tmp_path, seed)]
    assert seen
    assert "NOT FOUND" not in seen, seen


def test_the_committed_comparison_has_no_miss():
    seen = json.loads(Path(__file__).with_name("reality.json").read_text())
    assert seen["cases"] >= 2000
    assert seen["cases"] == sum(sum(kinds.values()) for kinds in seen["writers"].values())
    assert seen["not_found"] == 0
    assert set(seen["writers"]) == set(reality.WRITERS)

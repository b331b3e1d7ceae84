"""Hard cases for a recorder of file calls, made in the folder given; asserts that the system behaves as always."""

import ctypes
import fcntl
import mmap
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(sys.argv[1])
SIGNALS_FROM_519 = tuple(map(int, os.uname().release.split(".")[:2])) >= (5, 19)


def threads_append_while_signals_come():
    count = [0]
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: count.__setitem__(0, count[0] + 1))
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    fd = os.open(ROOT / "append", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    threads = [
        threading.Thread(target=lambda k=k: [os.write(fd, b"%d:%04d\n" % (k, i)) for i in range(200)]) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    lines = (ROOT / "append").read_text().split()
    assert len(lines) == len(set(lines)) == 800, (len(lines), count)


def a_write_that_a_signal_meets_is_made_once():
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(ROOT / "raw", os.O_WRONLY | os.O_CREAT, 0o644)
    pid = os.fork()
    if not pid:
        for _ in range(4000):
            os.kill(os.getppid(), signal.SIGUSR1)
        os._exit(0)
    done = sum(libc.write(fd, b"%06d\n" % i, 7) == 7 for i in range(500))
    os.waitpid(pid, 0)
    lines = (ROOT / "raw").read_text().split()
    assert len(lines) == len(set(lines)), "one was made twice"
    assert len(lines) == done or not SIGNALS_FROM_519


def fork_and_exec_share_what_is_open():
    fd = os.open(ROOT / "shared", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"parent ")
    pid = os.fork()
    if not pid:
        os.write(fd, b"child ")
        os._exit(0)
    os.waitpid(pid, 0)
    os.write(fd, b"parent\n")
    subprocess.run([sys.executable, "-c", f"import os; os.write({fd}, b'after exec\\n')"], pass_fds=[fd], check=True)
    assert (ROOT / "shared").read_text() == "parent child parent\nafter exec\n"


def a_shell_redirects():
    script = """
        echo hello > sh; echo more >> sh; mv sh sh2; cat sh2 > sh4; cp sh2 sh3; mkdir sub; mv sh3 sub; ln -s sh2 lnk
        (echo one; echo two) > both; (echo three; echo four) >> both
        ln sh2 hard; touch t; truncate -s 5000 t; dd if=/dev/zero of=dd bs=4k count=3 conv=fsync status=none
    """
    subprocess.run(["sh", "-ec", script], check=True, cwd=ROOT)
    assert (ROOT / "both").read_text() == "one\ntwo\nthree\nfour\n"


def descriptors_are_doubled():
    first = os.open(ROOT / "big", os.O_RDWR | os.O_CREAT, 0o644)
    second = os.dup(first)
    os.write(second, bytes(range(256)) * 4096)
    os.pwritev(first, [b"a" * 100, b"b" * 5000], 3)
    os.pwrite(first, b"x", 3 << 20)
    os.posix_fallocate(first, 0, 4 << 20)
    os.ftruncate(first, (3 << 20) + 77)
    third = fcntl.fcntl(first, fcntl.F_DUPFD, 0)
    os.write(third, b"tail")
    os.close(first)
    os.write(second, b"still")
    os.close(second)
    os.close(third)


def memory_is_mapped():
    fd = os.open(ROOT / "map", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8192)
    mapped = mmap.mmap(fd, 8192)
    mapped[0:3] = b"MAP"
    mapped.flush()
    mapped[5000:5003] = b"end"


def errors_come_through():
    for path, flags, number in (
        ("no/such", os.O_WRONLY | os.O_CREAT, 2),
        ("sub", os.O_WRONLY, 21),
        ("append", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 17),
    ):
        found = 0
        try:
            os.open(ROOT / path, flags)
        except OSError as error:
            found = error.errno
        assert found == number, path
    for call in ((ROOT / "sub").mkdir, (ROOT / "sub").rmdir):
        try:
            call()
        except OSError:
            continue
        raise AssertionError(call)


def folders_are_renamed_and_names_exchanged():
    (ROOT / "sub").rename(ROOT / "sub2")
    (ROOT / "sub2/in").write_text("in")
    os.chdir(ROOT / "sub2")
    Path("rel").write_text("rel")
    Path("rel").rename("in")
    with Path("in").open("a") as file:
        file.write("!")
    os.umask(0o077)
    Path("private").write_text("p")
    assert Path("private").stat().st_mode & 0o777 == 0o600
    libc = ctypes.CDLL(None)
    assert libc.renameat2(-100, b"in", -100, b"private", 2) == 0
    assert Path("private").read_text() == "rel!"
    assert libc.renameat2(-100, b"in", -100, b"private", 1) == -1
    os.chmod("private", 0o640)
    os.chdir("/")


def a_file_gets_its_name_later():
    fd = os.open(ROOT, os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.write(fd, b"nameless")
    os.link(f"/proc/self/fd/{fd}", ROOT / "named", src_dir_fd=0)  # follows the link
    os.write(fd, b" no more")
    assert (ROOT / "named").read_text() == "nameless no more"


def the_kernel_copies():
    source = os.open(ROOT / "shared", os.O_RDONLY)
    target = os.open(ROOT / "copy", os.O_WRONLY | os.O_CREAT)
    while os.copy_file_range(source, target, 1 << 20):
        pass
    assert (ROOT / "copy").read_bytes() == (ROOT / "shared").read_bytes()


def a_link_to_a_folder_is_replaced():
    for number in (1, 2):
        (ROOT / f"version{number}").mkdir()
        (ROOT / f"version{number}/file").write_text(str(number))
    (ROOT / "current").symlink_to("version1")
    (ROOT / "current/file").write_text("one")
    (ROOT / "next").symlink_to("version2")
    (ROOT / "next").rename(ROOT / "current")
    (ROOT / "current/file").write_text("two")
    assert [(ROOT / f"version{number}/file").read_text() for number in (1, 2)] == ["one", "two"]
    (ROOT / "current").unlink()
    (ROOT / "current").symlink_to("version1")
    (ROOT / "current/file").write_text("again")
    assert (ROOT / "version1/file").read_text() == "again"


def a_lock_ends_with_its_holder():
    def locked():
        fd = os.open(ROOT / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    fd = locked()
    try:
        locked()
    except BlockingIOError:
        os.close(fd)
    os.close(locked())
    pid = os.fork()
    if not pid:
        locked()
        os._exit(0)  # and never closes it
    os.waitpid(pid, 0)
    fd = os.open(ROOT / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)


def standard_output_is_written_in_place():
    code = "import os; os.pwrite(1, b'end', 9); os.pwrite(1, b'begin', 0)"
    with (ROOT / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (ROOT / "out").read_bytes() == b"begin\0\0\0\0end"


def many_are_opened():
    for number in range(700):
        fd = os.open(ROOT / "many", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, b"%d" % number)
        os.close(fd)


def a_database_works():
    for mode in ("delete", "wal"):
        with sqlite3.connect(ROOT / f"{mode}.db") as connection:
            connection.execute(f"pragma journal_mode={mode}")
            connection.execute("create table t(a, b)")
            for number in range(20):
                connection.execute("insert into t values(?, randomblob(3000))", (number,))
                connection.commit()
        connection.close()


for case in list(globals().values()):
    if callable(case) and getattr(case, "__module__", None) == __name__:
        case()

"""`explore`: any program, and which of what it acknowledged a power cut may take, by its file calls."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from durabench import explore as exploring
from durabench.explore import recording
from durabench.explore.report import MISSING

STATES = 40
HEAD = """
import json, os, sqlite3, sys
from pathlib import Path
import durabench

def sync_dir(folder="."):
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

def put(path, text, sync=None):
    with open(path, "w") as file:
        file.write(text)
        if sync:
            file.flush()
            sync(file.fileno())

def raw(path, i, sync=None):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, value(i).encode())
    if sync:
        sync(fd)
    os.close(fd)

STEPS = range(3)

def value(i):
    return f"checkpoint {i} " * 300
"""


def explored(tmp_path, code, *, check=None, **options):
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    script = tmp_path / "program.py"
    script.write_text(HEAD + code)
    options = {"states": STATES, **options}
    here = Path.cwd()
    os.chdir(root)
    try:
        return exploring.explore([sys.executable, str(script)], root, check=check, **options)
    finally:
        os.chdir(here)


def missing(report):
    return {finding.missing for finding in report.findings}


# --- variants of a save: which of them keep what they acknowledged

SAVES = {  # the body of a loop over steps; what is missing, none for the right ones
    "in place": ("put('ck', value(i))", {"fsync-file", "fsync-directory", "atomicity"}),
    "in place, fsync": ("put('ck', value(i), os.fsync)", {"fsync-directory", "atomicity"}),
    "rename": ("put('t', value(i)); os.rename('t', 'ck')", {"fsync-file", "fsync-directory", "order"}),
    "fsync, rename": ("put('t', value(i), os.fsync); os.rename('t', 'ck')", {"fsync-directory"}),
    "rename, fsync of the folder": ("put('t', value(i)); os.rename('t', 'ck'); sync_dir()", {"fsync-file", "order"}),
    "fsync, rename, fsync of the folder": ("put('t', value(i), os.fsync); os.rename('t', 'ck'); sync_dir()", set()),
    "fdatasync, rename, fsync of the folder": (
        *("put('t', value(i), os.fdatasync); os.rename('t', 'ck'); sync_dir()", set()),
    ),
    "os.write, fsync, rename, fsync of the folder": (
        *("raw('t', i, os.fsync); os.replace('t', 'ck'); sync_dir()", set()),
    ),
    "os.write, rename": (*("raw('t', i); os.replace('t', 'ck')", {"fsync-file", "fsync-directory", "order"}),),
    "a new file at every step, fsync, fsync of the folder": ("put(f'ck{i}', value(i), os.fsync); sync_dir()", set()),
    "a new file at every step, fsync": ("put(f'ck{i}', value(i), os.fsync)", {"fsync-directory"}),
}


@pytest.mark.parametrize("name", SAVES)
def test_variants_of_a_save(name, tmp_path):
    body, lacks = SAVES[name]
    report = explored(tmp_path, f"for i in STEPS:\n    {body}\n    durabench.mark(i)\n")
    assert missing(report) == lacks, report
    assert report.verdict == ("broken" if lacks else "kept"), report.answer
    assert report.marks == 3
    assert all(
        finding.where.startswith("../program.py:") or "program.py:" in finding.where for finding in report.findings
    )


def test_the_readme_tells_the_variants_as_they_are():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    rows = re.findall(
        r"^\| (.+) \| (.+) \|$", readme.partition("| a save | missing |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert dict(rows[1:]) == {name: ", ".join(sorted(lacks)) or "nothing" for name, (_, lacks) in SAVES.items()}


# --- known bugs, each beside its right twin

RECIPES = {
    # Files of no length after a crash, when delayed allocation came: truncate, write, no flush.
    "configuration files are written in place": (
        "put('rc', value(i), os.fsync)",
        "put('rc.new', value(i), os.fsync); os.rename('rc.new', 'rc'); sync_dir()",
        "atomicity",
    ),
    # The editor's and package manager's recipe before 2009: rename is atomic, so nothing is flushed.
    "rename without a flush": (
        "put('t', value(i)); os.rename('t', 'f'); sync_dir()",
        "put('t', value(i), os.fsync); os.rename('t', 'f'); sync_dir()",
        "fsync-file",
    ),
    # Flushing the descriptor while the bytes are still in the program's own buffer.
    "fsync before flush": (
        "f = open('t', 'w'); f.write(value(i)); os.fsync(f.fileno()); f.close(); os.rename('t', 'f'); sync_dir()",
        "put('t', value(i), os.fsync); os.rename('t', 'f'); sync_dir()",
        "fsync-file",
    ),
    # Systems whose rename does not replace: remove the old one first.
    "remove, then rename": (
        "put('t', value(i), os.fsync); Path('f').unlink(missing_ok=True); sync_dir(); os.rename('t', 'f'); sync_dir()",
        "put('t', value(i), os.fsync); os.replace('t', 'f'); sync_dir()",
        "atomicity",
    ),
    # A folder per version: file and folder are flushed, the folder's own name is not.
    "a new folder whose parent is not flushed": (
        "os.mkdir(f'v{i}'); put(f'v{i}/data', value(i), os.fsync); sync_dir(f'v{i}')",
        "os.mkdir(f'v{i}'); put(f'v{i}/data', value(i), os.fsync); sync_dir(f'v{i}'); sync_dir()",
        "fsync-parent",
    ),
    # A log-structured store: the pointer to the newest manifest is renamed, and its folder not flushed.
    "a manifest without a flush of its folder": (
        "put(f'MANIFEST-{i}', value(i), os.fsync); put('tmp', 'x', os.fsync); os.rename('tmp', 'CURRENT')",
        "put(f'MANIFEST-{i}', value(i), os.fsync); put('tmp', 'x', os.fsync); os.rename('tmp', 'CURRENT'); sync_dir()",
        "fsync-directory",
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_known_bugs_are_found_and_their_right_twins_are_not(name, tmp_path):
    wrong, right, lacks = RECIPES[name]
    for folder, body in (("wrong", wrong), ("right", right)):
        (tmp_path / folder).mkdir()
        report = explored(tmp_path / folder, f"for i in STEPS:\n    {body}\n    durabench.mark(i)\n")
        if folder == "wrong":
            assert lacks in missing(report), report
        else:
            assert report.verdict == "kept", report


DATABASE = """
connection = sqlite3.connect("t.db")
connection.execute("pragma journal_mode={mode}")
connection.execute("pragma synchronous={sync}")
connection.execute("create table t(a)")
connection.commit()
for i in STEPS:
    connection.execute("insert into t values(?)", (i,))
    connection.commit()
    durabench.mark(i)
"""
CHECK = """
import json, os, sqlite3, sys
wanted = [json.loads(line) for line in open(os.environ["DURABENCH_ACKNOWLEDGED"])]
assert os.getcwd() == os.path.realpath(os.environ["DURABENCH_ROOT"])
try:
    there = [a for a, in sqlite3.connect("t.db").execute("select a from t")]
except sqlite3.OperationalError as error:
    if "no such table" not in str(error):
        raise
    there = []
sys.exit(0 if set(wanted) <= set(there) else 1)
"""


@pytest.mark.parametrize(
    "mode, sync, lacks, without",
    [
        ("delete", "full", {"fsync-directory"}, "broken"),  # the journal's removal: known since 2014
        ("delete", "extra", set(), "kept"),
        ("wal", "full", set(), "unknown"),  # nobody but its reader knows that the index beside the log is no data
        ("wal", "normal", {"fsync-file"}, "broken"),
    ],
)
def test_a_database_by_its_own_reader_and_without(mode, sync, lacks, without, tmp_path):
    checker = tmp_path / "check.py"
    checker.write_text(CHECK)
    for check, verdict in ((None, without), (f"{sys.executable} {checker}", "broken" if lacks else "kept")):
        where = tmp_path / verdict / ("by itself" if check is None else "checked")
        where.mkdir(parents=True)
        report = explored(where, DATABASE.format(mode=mode, sync=sync), check=check, states=30)
        assert (report.verdict, missing(report)) == (verdict, lacks), report
        assert report.checked == (check is not None)
    if without == "unknown":
        (tmp_path / "told").mkdir()
        told = explored(tmp_path / "told", DATABASE.format(mode=mode, sync=sync), ignore=["*-shm"], states=30)
        assert told.verdict == "kept", told
    elif mode == "delete" and lacks:
        assert [finding.operation for finding in report.findings] == ["remove t.db-journal"]


def test_what_is_mapped_and_flushed_once_is_judged(tmp_path):
    code = """
import mmap
put("f", "x" * 8192, os.fsync)
sync_dir()
fd = os.open("f", os.O_RDWR)
mapped = mmap.mmap(fd, 8192)
for i in STEPS:
    mapped[:5000] = str(i).encode() * 5000
    if i == 0 or len(sys.argv) > 9:
        mapped.flush()
    durabench.mark(i)
"""
    assert missing(explored(tmp_path, code)) == {"fsync-file"}
    (tmp_path / "right").mkdir()
    assert explored(tmp_path / "right", code.replace("> 9", "> 0")).verdict == "kept"


def test_a_database_that_flushes_nothing_breaks(tmp_path):
    report = explored(tmp_path, DATABASE.format(mode="delete", sync="off"))
    assert {"fsync-file", "fsync-directory"} <= missing(report)


# --- what is acknowledged


def test_the_programs_end_is_an_acknowledgement_where_there_is_no_other(tmp_path):
    report = explored(tmp_path, "put('f', 'x' * 3000)")
    assert missing(report) == {"fsync-file", "fsync-directory"}
    assert "the program's end" in report.answer


def test_lines_acknowledge(tmp_path):
    code = "put('f', 'x', os.fsync); sync_dir(); print('saved 1', flush=True); put('g', 'x'); print('noise')"
    report = explored(tmp_path, code, acknowledged="^saved")
    assert (report.verdict, report.marks) == ("kept", 1), report


def test_what_holds_nothing_of_value_is_ignored(tmp_path):
    code = "put('lock', ''); os.mkdir('logs'); put('logs/a.log', 'x'); put('f', 'x', os.fsync); sync_dir()"
    (tmp_path / "a").mkdir()
    assert {each.path for each in explored(tmp_path / "a", code).findings} == {"logs/a.log"}
    assert explored(tmp_path, code, ignore=["lock", "*.log"]).verdict == "kept"


def test_under_ext4_a_state_that_needs_somebody_elses_flush_says_so(tmp_path):
    code = """
fd = os.open("log", os.O_WRONLY | os.O_CREAT)
put("other", "x" * 10, os.fsync)
sync_dir()
durabench.mark(0)
for i in (1, 2, 3):
    os.write(fd, b"%d" % i * 100)
    durabench.mark(i)
"""
    check = f"{sys.executable} -c \"import sys; sys.exit(b'\\0' in open('log', 'rb').read())\""
    (tmp_path / "one").mkdir()
    report = explored(tmp_path / "one", code, check=check, profile="ext4-ordered", states=80)
    assert report.losing
    assert {lost.needs for lost in report.losing} == {"another commit"}


# --- crash points and failing calls


def test_crash_points_kill_at_every_call(tmp_path):
    old, new = "put('f', 'old' * 1000, os.fsync)", "put('f', 'new' * 1000, os.fsync)"
    code = f"{old}; sync_dir(); durabench.mark(1); {new}; durabench.mark(2)"
    (tmp_path / "a").mkdir()
    report = explored(tmp_path / "a", code, crash_points=True)
    assert missing(report) == {"atomicity"}
    assert {lost.kind for lost in report.losing} >= {"all", "torn head"}


def test_a_flush_that_fails_once_must_not_be_believed_the_second_time(tmp_path):
    code = """
fd = os.open("f", os.O_WRONLY | os.O_CREAT)
sync_dir()
for i in STEPS:
    os.pwrite(fd, b"%d" % i * 2000, 4096 * i)
    for attempt in range(2):
        try:
            os.fsync(fd)
            break
        except OSError:
            continue
    durabench.mark(i)
"""
    report = explored(tmp_path, code)
    assert report.verdict == "kept", report
    (tmp_path / "again").mkdir()
    report = explored(tmp_path / "again", code, crash_points=True)
    assert missing(report) == {"fsync-file"}, report
    assert (tmp_path / "again/root/f").read_bytes() == (tmp_path / "root/f").read_bytes(), "what it left is there again"


def test_nothing_of_somebodys_is_removed_for_a_call_to_fail(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/precious").write_text("yes")
    report = explored(tmp_path, "put('f', 'x', os.fsync); sync_dir()", crash_points=True)
    assert report.verdict == "kept"
    assert any("not empty before" in note for note in report.notes)
    assert (tmp_path / "root/precious").read_text() == "yes"


# --- what is shown


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return explored(tmp_path_factory.mktemp("broken"), "put('a|b', 'x' * 3000)", out=None)


def test_the_document(broken):
    made = exploring.document(broken)
    assert {"schema_version", "program", "verdict", "states", "losing", "findings"} <= set(made)
    assert (made["verdict"], made["losing"] > 0, made["evidence"]) == ("broken", True, "modelled")
    assert made["losing"] <= made["states"]
    for finding in made["findings"]:
        assert {"id", "operation", "path", "missing", "where", "states"} <= set(finding)
        assert finding["missing"] in MISSING
        assert 0 < finding["states"] <= made["losing"]
    assert json.loads(exploring.render(broken, "json")) == json.loads(json.dumps(made))


def test_every_form_names_every_finding_and_says_modelled(broken):
    ids = {finding.id for finding in broken.findings}
    junit = ET.fromstring(exploring.render(broken, "junit").encode())
    assert {case.get("name") for case in junit if case.find("failure") is not None} == ids
    assert junit.get("failures") == str(len(ids))
    github = exploring.render(broken, "github")
    assert github.count("::error ") == len(ids) + 1
    assert "file=" in github
    markdown = exploring.render(broken, "markdown")
    assert r"a\|b" in markdown
    assert "modelled" in markdown
    table = exploring.render(broken, "table")
    assert all(finding.operation in table for finding in broken.findings)
    assert "modelled, profile posix: no device was cut" in table


def test_losing_states_are_kept_as_folders(tmp_path):
    code = "put('ck', value(1), os.fsync); sync_dir(); durabench.mark(1); put('ck', value(2)); durabench.mark(2)"
    report = explored(tmp_path, code, out=tmp_path / "out")
    folders = sorted((tmp_path / "out/states").iterdir(), key=lambda each: int(each.name))
    assert [each.name for each in folders] == [str(lost.number) for lost in report.losing[: len(folders)]]
    assert any((each / "ck").read_text() != "checkpoint 2 " * 300 for each in folders if (each / "ck").exists())
    with pytest.raises(exploring.UsageError, match="choose another folder"):
        exploring.explore(["true"], tmp_path, out=tmp_path / "out")


# --- the command


def test_the_command_and_its_exit_statuses(durabench_command, tmp_path):
    right = "put('t', 'x', os.fsync); os.rename('t', 'f'); sync_dir()"
    for code, status in ((right, 0), ("put('f', 'x')", 1), ("pass", 3)):
        (tmp_path / "program.py").write_text(HEAD + code)
        root = tmp_path / str(status)
        root.mkdir()
        done = durabench_command(
            *(
                "explore",
                "--root",
                root,
                "--states",
                20,
                "--format",
                "json",
                "--",
                sys.executable,
                tmp_path / "program.py",
            ),
            cwd=root,
        )
        assert done.returncode == status, done.stderr
        assert json.loads(done.stdout)["verdict"] == {0: "kept", 1: "broken", 3: "unknown"}[status]
        assert "Traceback" not in done.stderr


@pytest.fixture
def durabench_command():
    def call(*words, cwd=None):
        command = [sys.executable, "-m", "durabench", *map(str, words)]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)

    return call


@pytest.mark.parametrize(
    "words, said",
    [
        (["explore"], "a program is missing"),
        (["explore", "--", "no-such-program"], "there is no program 'no-such-program'"),
        (["explore", "--profile", "zfs", "--", "true"], "no profile 'zfs'; there are posix, ext4-ordered"),
        (["explore", "--root", "/no/such", "--", "true"], "is no folder"),
        (["explore", "--states", "0", "--", "true"], "--states must be 1 or more"),
        (["explore", "--acknowledged", "(", "--", "true"], "--acknowledged:"),
        (["explore", "--check", "'", "--", "true"], "--check: No closing quotation"),
        (["explore", "--check", "", "--", "true"], "--check is empty"),
        (["explore", "--format", "xml", "--", "true"], "no format 'xml'"),
    ],
)
def test_bad_input_is_one_line(words, said, durabench_command, tmp_path):
    done = durabench_command(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "code, options, said",
    [
        ("pass", {}, "did nothing below"),
        ("durabench.mark(1); put('f', 'x')", {}, "nothing was written before an acknowledgement"),
        ("put('f', 'x'); print('no')", {"acknowledged": "^saved"}, "no line on stdout matched"),
        ("put('f', 'x'); os.kill(os.getpid(), 9)", {}, "ended by signal 9 and acknowledged nothing"),
        ("while True: put('f', value(1))", {"limit_bytes": 1 << 20}, "the log reached its limit of 1 MiB"),
        ("put('f', 'x', os.fsync); sync_dir()", {"check": "sleep 60"}, "the check did not end within"),
        ("fd = os.open('f', os.O_WRONLY | os.O_CREAT); os.dup2(fd, 30); os.write(30, b'x')", {}, "moved to 30"),
    ],
)
def test_bad_luck_is_said_and_never_kept(code, options, said, tmp_path, monkeypatch):
    monkeypatch.setattr("durabench.explore.look.CHECK_S", 1.0)
    report = explored(tmp_path, code, **options)
    assert any(said in doubt for doubt in report.doubts), report.doubts
    assert report.verdict in {"unknown", "broken"}
    assert report.verdict == "broken" or report.exit_status == 3


def test_what_was_acknowledged_before_a_program_was_killed_counts(tmp_path):
    code = "put('f', 'x'); durabench.mark(1); os.kill(os.getpid(), 9)"
    report = explored(tmp_path, code)
    assert report.verdict == "broken"
    assert "the program ended by signal 9" in report.notes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopping_durabench_leaves_nothing_running(number, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    tag = f"durabench-explore-test-{os.getpid()}-{number}"
    code = "import os, time, pathlib\nif os.fork() == 0: os.setsid()\npathlib.Path('ready').touch()\ntime.sleep(600)"
    words = [sys.executable, "-m", "durabench", "explore", "--root", root, "--", sys.executable, "-c", code, tag]
    with subprocess.Popen(list(map(str, words)), cwd=root, stderr=subprocess.PIPE, text=True) as started:
        end = time.monotonic() + 60
        while not ((root / "ready").exists() and len(running(tag)) >= 5):
            assert time.monotonic() < end
            time.sleep(0.01)
        started.send_signal(number)
        started.wait(60)
        while running(tag):
            assert time.monotonic() < end
            time.sleep(0.01)
        if number == signal.SIGINT:
            assert (started.returncode, started.stderr.read()) == (
                130,
                "durabench: interrupted; the program was ended\n",
            )


def running(tag):
    """The living processes with a word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                alive = "\nState:\tZ" not in (entry / "status").read_text()
            except OSError:
                continue
            if alive and tag.encode() in words:
                found.append(int(entry.name))
    return found


def test_a_program_that_changes_its_user_is_refused(tmp_path):
    program = tmp_path / "setuid"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o4755)
    with pytest.raises(exploring.UsageError, match="changes its user"):
        exploring.explore([str(program)], tmp_path)


def test_where_nothing_can_be_recorded_it_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "why_not", lambda: "no seccomp: get one")
    with pytest.raises(exploring.CannotRecord, match="file calls cannot be recorded here: no seccomp: get one"):
        exploring.explore(["true"], tmp_path)


def test_a_program_that_is_not_python_has_no_place(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    report = exploring.explore(["sh", "-c", f"echo x > {root}/f"], root, states=20)
    assert missing(report) == {"fsync-file", "fsync-directory"}
    assert {finding.where for finding in report.findings} == {None}


def test_a_program_has_its_own_sitecustomize_too(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nos.environ['OWN_SITE'] = 'yes'\n")
    code = "put('f', os.environ['OWN_SITE'], os.fsync); sync_dir()"
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(site)
    try:
        report = explored(tmp_path, code)
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    assert (report.verdict, (tmp_path / "root/f").read_text()) == ("kept", "yes"), report

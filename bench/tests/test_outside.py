"""Whatever somebody else hands in: one line and exit 2 or 3, never a traceback, a hang, or anything run.

Each door of bench/docs/outside.md is tried with inputs drawn from a seed (`mutations`); ``DURABENCH_FUZZ=20`` tries
twenty times as many.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
import shutil
import sqlite3
from importlib.resources import files
from pathlib import Path
from random import Random

import pytest

import durabench_vm as vm
from durabench import output, outside, process, profile, report, results, schedule, stored, tracing
from durabench import run as running
from durabench.cli import options
from durabench.cli.plan import sizes_between
from durabench.plan import table, trace
from durabench.process import HarnessError
from durabench.report import CELL, gates, load_expectations
from durabench.row import ROWS
from durabench.verify import goal, ignored
from durabench_backends import registry
from durabench_backends.contract import Fact, NotReady, Promise, Verifiable
from durabench_backends.locate import program

MUTATIONS = runpy.run_path(str(Path(__file__).parent / "mutations.py"))
TIMES, answered, of_bytes, of_json, ODD = (
    MUTATIONS[name] for name in ("TIMES", "answered", "of_bytes", "of_json", "ODD")
)
ROOT = Path(__file__).resolve().parents[2]
KILLS, POWER, PLAN = (ROOT / "results" / name for name in ("kills", "power", "plan"))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A folder of a few trials of every kind, taken from the committed runs, with a plan."""
    path = tmp_path_factory.mktemp("outside") / "run"
    (path / "histories").mkdir(parents=True)
    run, every = json.loads((KILLS / "run.json").read_text()), lines(KILLS / "trials.jsonl")
    losing = next(row["trial"] for row in every if row["lost"] and row["control"] is None)
    trials = {*list(dict.fromkeys(row["trial"] for row in every))[:5], losing}
    rows = [row for row in every if row["trial"] in trials]
    labels = {f"{row['backend']}:{row['setting']}" for row in rows}
    planned = [row for row in run["plan"] if row["trial"] in trials]
    places = sorted({row["as"] for row in planned})
    run["plan"] = [{**row, "as": places.index(row["as"])} for row in planned]
    run["plan_shared"] = [run["plan_shared"][place] for place in places]
    run["cells"] = run["cells"][:6]
    for name in ("versions", "targets", "promises"):
        run[name] = {label: value for label, value in run[name].items() if label in labels}
    (path / "run.json").write_text(json.dumps(run))
    (path / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for trial in trials:
        shutil.copy(KILLS / "histories" / f"{trial}.jsonl.gz", path / "histories")
    (path / "floors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines(KILLS / "floors.jsonl")[:4]))
    shutil.copy(KILLS / "done.json", path)
    (path / "samples.i64").write_bytes((KILLS / "samples.i64").read_bytes()[:4096])
    plan = json.loads((PLAN / "plan.json").read_text())
    few = {name: plan[name][:2] for name in ("sweep", "crossings", "split", "candidates")}
    (path / "plan.json").write_text(json.dumps({**plan, **few}))
    (path / "plan.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines(PLAN / "plan.jsonl")[:3]))
    return path


@pytest.fixture
def mine(good, tmp_path):
    """A copy of it, and the number of a trial that lost."""
    return Path(shutil.copytree(good, tmp_path / "run"))


def losing(folder):
    return next(row for row in lines(folder / "trials.jsonl") if row["lost"] and row["control"] is None)


def rewrite(path, change):
    """A document, or every row of a file, with ``change`` made to it."""
    if path.suffix == ".json":
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    else:
        path.write_text("".join(json.dumps({**row, **change}) + "\n" for row in lines(path)))


def shows(path):
    """All that the commands make of a folder, but for the drawings."""
    (folder,) = results.runs_in([path])
    document = report.document([folder])
    for form in ("table", "json", "csv", "markdown"):
        report.render(document, form)
    if (plan := folder.whole_plan) is not None:
        for form in ("table", "markdown", "csv"):
            table.render(plan, form)
    folder.plan_rows()
    running.judge_again(folder)


# --- results folders, by hand


@pytest.mark.parametrize(
    "change, said",
    [
        ({"trial": "1; touch pwned #"}, "trial: expected `int`"),
        ({"trial": [1]}, "trial: expected `int`"),
        ({"lost": -1}, "lost: expected `int` >= 0"),
        ({"lost": 1 << 63}, "lost: expected `int` <= 9223372036854775807"),
        ({"lost": True}, "lost: expected `int | null`, got `bool`"),
        ({"loss_window_s": float("nan")}, "NaN is no number of JSON"),
        ({"loss_window_s": float("inf")}, "Infinity is no number of JSON"),
        ({"loss_window_s": 1e300}, "loss_window_s: expected `float` <= "),
        ({"verdict": "kept!"}, "verdict: invalid enum value"),
        ({"control": "mine"}, "control: invalid enum value"),
        ({"namespace": "../x"}, "namespace: invalid enum value"),
        ({"verdict": None}, "verdict: expected `str`"),
    ],
)
def test_a_row_that_is_none_is_refused_with_its_line(mine, typed, change, said):
    rewrite(mine / "trials.jsonl", change)
    status, out, err = typed("report", mine)
    assert (status, out) == (2, "")
    assert f"trials.jsonl, line 1 is no row: {said}" in err
    assert err.count("\n") == 1


def test_a_name_that_stands_twice_is_refused(mine, typed):
    text = (mine / "trials.jsonl").read_text()
    (mine / "trials.jsonl").write_text(text.replace('"lost": ', '"lost" :0, "lost": ', 1))
    status, _, err = typed("report", mine)
    assert status == 2
    assert "'lost' stands there twice" in err


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000, '"\\ud800"', '{"a":1,"a":2}'])
@pytest.mark.parametrize("name", ["run.json", "done.json", "plan.json"])
def test_a_document_that_cannot_be_read_in_one_way_is_refused(mine, typed, name, deep):
    (mine / name).write_text('{"schema_version": 2, "more": ' + deep + "}")
    status, out, err = typed("report", mine)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{name} is not what durabench writes" in err


def test_words_cannot_steer_the_terminal_nor_run_from_the_page(mine, typed, tmp_path):
    (mine / "plan.json").unlink()
    odd = tmp_path / "a folder; touch pwned"
    shutil.copytree(mine, odd)
    rewrite(odd / "trials.jsonl", {"why": "\x1b[2Jgone\nkept\u2028\u202e", "verdict": "broken"})
    rewrite(odd / "run.json", {"profile": "\x1b]0;x\x07", "machine": {"id": "\x1b[2J", "kernel": "a\nb"}})
    page = tmp_path / "page.html"
    status, out, _ = typed("report", odd, "--html", page)
    assert status == 0
    assert not re.search("[\x00-\x09\x0b-\x1f\u2028\u202e]", out)
    assert r"\x1b[2Jgone\x0akept\u2028\u202e" in "".join(out.split("\n"))
    html = page.read_text()
    assert not re.search("[\x1b\u2028\u202e]", html)
    assert re.search(r"durabench replay &#39;[^<]*touch pwned&#39; \d+", html)
    assert f"durabench replay '{odd}' " in out


def test_nothing_outside_the_folder_is_read(mine, typed, tmp_path):
    """A name that leads out of the folder, a link in it, and a link in place of one of its folders."""
    secret = tmp_path / "secret.gz"
    shutil.copy(next((POWER / "recordings").glob("*rename-ext4.gz")), secret)
    plan = {**json.loads((POWER / "run.json").read_text())["plan_shared"][0], "trial": 0, "seed": 1}
    for name in ("../../secret", "/" + str(secret).removesuffix(".gz"), "..", ".", "a/b", "", "x" * 300):
        rewrite(mine / "run.json", {"plan": [{**plan, "recording": name}]})
        status, _, err = typed("replay", mine, 0)
        assert (status, err.count("\n")) == (2, 1), err
        assert "is no name of a file" in err
        assert not results.Folder.open(mine).has_recording(name)
    (mine / "recordings").mkdir()
    (mine / "recordings" / "linked.gz").symlink_to(secret)
    assert not results.Folder.open(mine).has_recording("linked")
    (mine / "recordings" / "linked.gz").unlink()
    (mine / "recordings").rmdir()
    (mine / "recordings").symlink_to(tmp_path)
    assert not results.Folder.open(mine).has_recording("secret")


@pytest.mark.parametrize("name", ["run.json", "trials.jsonl", "floors.jsonl", "samples.i64", "done.json", "histories"])
def test_a_link_in_the_folder_is_not_followed(mine, typed, tmp_path, name):
    (mine / name).rename(tmp_path / name)
    (mine / name).symlink_to(tmp_path / name)
    status, out, err = typed("judge" if name == "histories" else "report", mine)
    assert (status, out) == (2, "")
    assert "is a link" in err


@pytest.mark.parametrize("name", ["run.json", "trials.jsonl", "samples.i64", "plan.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(mine, typed, name):
    (mine / name).unlink()
    os.mkfifo(mine / name)
    status, _, err = typed("report", mine)
    assert status == 2
    assert "is no file" in err


def test_a_history_is_unpacked_up_to_a_limit(mine, monkeypatch):
    bomb = gzip.compress(b'{"e":"trial","seed":1}\n' + b" " * 50_000_000, 9)
    monkeypatch.setattr(outside.unpacked, "__defaults__", (1 << 20,))
    trial = losing(mine)["trial"]
    (mine / "histories" / f"{trial}.jsonl.gz").write_bytes(bomb)
    with pytest.raises(results.Malformed, match="unpacks to more than 1 MiB"):
        results.Folder.open(mine).history(trial)


@pytest.mark.parametrize("at, n", [(0, 10**9), (10**15, 1), (511, 2), ((1 << 63) - 1, (1 << 63) - 1)])
def test_samples_beyond_the_file_are_none(mine, at, n):
    assert list(results.Folder.open(mine).samples(at, n)) == []


def test_a_latency_below_nothing_is_refused(mine):
    (mine / "samples.i64").write_bytes(b"\xff" * 8)
    with pytest.raises(results.Malformed, match="a latency below 0"):
        results.Folder.open(mine).samples(0, 1)


@pytest.mark.parametrize(
    "event, said",
    [
        ({"e": "ok", "w": 0, "i": 0, "t": 1}, "ok without latency_ns"),
        ({"e": "armed", "w": [0]}, "w: expected `int`"),
        ({"e": "struck", "where": "x"}, "where: invalid enum value"),
        (
            {"e": "reading", "ns": "data", "key": "k", "value": {"length": -1, "sha256": "", "blocks": []}},
            "value.length",
        ),
        ({"w": 1}, "missing required field `e`"),
        ([], "expected `object`"),
    ],
)
def test_an_event_that_is_none_is_refused(mine, typed, event, said):
    trial = losing(mine)["trial"]
    (mine / "histories" / f"{trial}.jsonl.gz").write_bytes(gzip.compress(json.dumps(event).encode() + b"\n"))
    status, out, err = typed("judge", mine)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    "change, said",
    [
        ({"writers": 10**9}, "writers"),
        ({"settle_s": 1e12}, "without end"),
        ({"puts": 10**12}, "without end"),
        ({"server_kill": "; rm"}, "kills"),
        ({"metadata": {"backend": 1}}, "metadata.backend: expected `str`"),
        ({"metadata": []}, "metadata: expected `object`"),
        ({"lane": "moon"}, "in lane 'moon'"),
        ({"filesystem": "ext4:journal_path=/dev/sda"}, "no mount option"),
        ({"recording": "x"}, "recording x"),
    ],
)
def test_a_plan_that_is_none_is_not_run_again(mine, typed, change, said):
    trial = losing(mine)["trial"]
    planned = next(row for row in results.Folder.open(mine).plan() if row["trial"] == trial)
    rewrite(mine / "run.json", {"plan": [{**planned, **change}]})
    status, out, err = typed("replay", mine, trial)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_older_and_whole_folders_still_read():
    for path in (KILLS, POWER, PLAN):
        folder = results.Folder.open(path)
        every = zip(folder.trials(), lines(path / "trials.jsonl"), strict=True)
        changed = [was["trial"] for now, was in every if now != {**dict.fromkeys(ROWS.fields), **was}]
        assert changed == [], "nothing is changed on the way, and what is new is null"
        assert (folder.run == json.loads((path / "run.json").read_text())) is True
    found, written = results.Folder.open(PLAN).plan_document, json.loads((PLAN / "plan.json").read_text())
    for name in ("sweep", "crossings", "split", "recommendation"):
        assert found[name] == written[name]


def test_rows_pass_the_same_schema_both_ways():
    row = dict.fromkeys(ROWS.fields) | lines(KILLS / "trials.jsonl")[0]
    assert ROWS.row(json.dumps(ROWS.checked(row)).encode() + b"\n") == row
    for name in ("lost", "position", "samples_at"):
        with pytest.raises(ValueError, match=name):
            ROWS.checked({**row, name: -1})


def test_a_recording_cannot_lie(tmp_path):
    """Lengths, offsets, units and counts that no disk logs, and a bomb."""
    source = next((POWER / "recordings").glob("*rename-ext4.gz"))
    raw = gzip.decompress(source.read_bytes())
    heading = raw.index(b"}") + 1
    first = vm.recording.HEAD.unpack_from(raw, heading)

    def with_first(**change):
        names = ("kind", "flags", "payload", "time_ns", "where", "extent")
        return raw[:heading] + vm.recording.HEAD.pack(*{**dict(zip(names, first, strict=True)), **change}.values())

    lies = [
        raw[:heading].replace(b'"unit_bytes": 512', b'"unit_bytes": 0  ') + raw[heading:],
        raw[:heading].replace(b'"size_bytes": 268435456', b'"size_bytes": -68435456') + raw[heading:],
        raw[:22] + b"\xff\xff\xff\x7f" + raw[26:],
        with_first(kind=77) + raw[heading + 32 :],
        with_first(where=1 << 60) + raw[heading + 32 :],
        with_first(extent=1 << 60) + raw[heading + 32 :],
        with_first(kind=2, where=1 << 40, payload=0),
        with_first(kind=5, payload=9) + b"[" * 9,
    ]
    for number, lie in enumerate(lies):
        path = tmp_path / f"lie-{number}"
        path.write_bytes(lie)
        with pytest.raises(vm.RecordingError, match=path.name):
            vm.Recording.load(path)


def test_a_recording_is_unpacked_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(vm.recording, "LOG_BYTES", 3 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(vm.recording.MAGIC + bytes(50 << 20), 9))
    with pytest.raises(vm.RecordingError, match="unpacks to more"):
        vm.Recording.load(tmp_path / "bomb.gz")


# --- every door, by chance


def by_file(call):
    def take(content, path):
        path.write_bytes(content)
        return call(path)

    return take


def by_words(call):
    return lambda content, _: call(content.decode("utf-8", "replace").replace("\0", ""))


def recording(path):
    read = vm.Recording.load(path)
    try:
        read.gaps()
        read.unflushed(len(read))
    finally:
        read.close()


def told(content, _):
    """A line of a driver, as the harness hears it."""
    speaker = object.__new__(process.Process)
    speaker.last_words = lambda what: what
    return speaker._event(content)


def variable(content, _):
    """A program that a variable of the environment names."""
    said = content.replace(b"\0", b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DURABENCH_NO_PROGRAM", os.fsdecode(said))
        return program("true", "DURABENCH_NO_PROGRAM", ("pytest", "*/true"), (), "the line that installs it")


def database(path):
    """What a file says of itself that is said to be a database."""
    found = registry.load("sqlite")
    try:
        facts = list(found.from_url(f"sqlite:///{path}").inspect())
    except NotReady as error:  # `verify` says so in one line, exit 3
        raise HarnessError(str(error)) from None
    return found.promise(facts), list(found.checks(facts, goal("drive", 0.0)))


def a_database():
    """The bytes of a small one."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table t (k primary key, v)")
        return connection.serialize()


def said_by_servers(content, _):
    """What every backend makes of facts: no answer of a server is one that it cannot read."""
    for label, words in json.loads(content).items():
        found = registry.load(label.partition(":")[0])
        facts = [Fact(name, value, origin) for name, (value, origin) in words.items()]
        assert isinstance(found.promise(facts), Promise)
        if isinstance(found, Verifiable):
            for domain in ("client", "server", "machine", "drive"):
                assert list(found.checks(facts, goal(domain, 0.0)))


def answers_of_servers():
    """The facts of the committed run: what real servers said."""
    targets = json.loads((KILLS / "run.json").read_text())["targets"]
    return {
        label: {name: (fact["value"], fact["origin"]) for name, fact in one["facts"].items()}
        for label, one in targets.items()
    }


@pytest.mark.parametrize("label", sorted(answers_of_servers()))
def test_any_answer_of_a_server_is_read(label):
    good = answers_of_servers()[label]
    rng = Random(label)
    odd = [str(one) for one in ODD if isinstance(one, str | int | float)]
    for number in range(20 * TIMES):
        bad = {name: said for name, said in good.items() if rng.random() > 0.1}
        for name in rng.sample(sorted(bad), min(len(bad), rng.choice((1, 1, 2, 5)))):
            bad[name] = (rng.choice([*odd, str(bad[name][0])[:-1], str(bad[name][0]) + "0"]), bad[name][1])
        content = json.dumps({label: bad}).encode()
        assert answered(lambda content=content: said_by_servers(content, None), told=f"{label}, {number}") == 0


STRACE = rb"""12 openat(AT_FDCWD</tmp/x>, "\x61\x62", O_WRONLY|O_CREAT|O_TRUNC, 0600) = 3</tmp/x/ab>
12 write(3</tmp/x/ab>, ""..., 2048) = 2048
12 rename("\x61", "\x62") = 0
12 fcntl(3</tmp/x/ab>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=120, l_len=1}) = 0
12 pwrite64(3</tmp/x/ab>, ""..., 10, 512 <unfinished ...>
12 <... pwrite64 resumed>) = 10
12 ftruncate(3</tmp/x/ab>, 0) = 0
"""
DOORS = {
    "trace.csv": (b"step,metadata_bytes,data_bytes,changed\n0,2048,1048576,true\n1,2048,9,no\n", by_file(trace.read)),
    "trace.jsonl": (b'{"step":0,"metadata_bytes":2,"data_bytes":9,"changed":true}\n' * 2, by_file(trace.read)),
    "profile": (
        (files("durabench") / "profiles" / "quick.toml").read_bytes(),
        by_file(lambda path: profile.load(str(path))),
    ),
    "expected": (b'[[expected]]\nsetting = "a:b"\nfault = "cut-power"\nreason = "x"\n', by_file(load_expectations)),
    "time": (b"150s", by_words(options.seconds)),
    "size": (b"64KiB", by_words(options.size_bytes)),
    "sizes": (b"256..64MiB", by_words(sizes_between)),
    "gate": (b"tier==T3 && loss_rate_high>0.02", by_words(lambda text: gates.parse(text, CELL))),
    "target": (b"sqlite:wal-full", by_words(schedule.targets_of)),
    "survive": (b"drive", by_words(lambda text: goal(text, 0.0))),
    "format": (b"json=x.json", by_words(lambda text: output.outputs([text], ["table", "json"]))),
    "ignore": (b"a.b=why", by_words(lambda text: ignored([text]))),
    "url sqlite": (b"sqlite:////no/a.db?journal_mode=wal&synchronous=full", by_words(schedule.targets_of)),
    "url file": (b"file:///no?write=fsync-dir", by_words(schedule.targets_of)),
    "url postgresql": (b"postgresql://ann:pw@127.0.0.1:1/db?sslmode=require", by_words(schedule.targets_of)),
    "url redis": (b"redis://:pw@127.0.0.1:1/0?waitaof=yes", by_words(schedule.targets_of)),
    "url s3": (b"s3://bucket/prefix?endpoint_url=http://127.0.0.1:1", by_words(schedule.targets_of)),
    "variable": (b"/bin/true", variable),
    "database": (a_database(), by_file(database)),
    "driver": (b'{"e":"ok","w":0,"i":1,"latency_ns":5}', told),
    "strace": (STRACE, by_file(lambda path: tracing.read(path, path.parent))),
    "recording": (gzip.decompress((POWER / "recordings/2-0-files_rename-ext4.gz").read_bytes()), by_file(recording)),
    "recording.gz": ((POWER / "recordings/2-0-files_rename-ext4.gz").read_bytes(), by_file(recording)),
    "event": (b'{"e":"ok","w":0,"i":1,"t":9,"latency_ns":5}', lambda content, _: malformed(stored.event, content)),
    "row": ((KILLS / "trials.jsonl").read_bytes().partition(b"\n")[0], lambda content, _: malformed(ROWS.row, content)),
}
EACH = 450
"""Inputs of a door, which makes 10,000 of all."""


def malformed(call, content):
    """What a folder's reader makes of it."""
    try:
        return call(content)
    except ValueError as error:
        raise results.Malformed(outside.wrong(error)) from None


def test_every_door_is_in_the_list_and_every_validator_there():
    text = (ROOT / "bench" / "docs" / "outside.md").read_text()
    table_lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    tried = {word for *_, how in table_lines for word in re.findall("`([^`]+)`", how)}
    assert tried == set(DOORS)
    for _, validators, _ in table_lines:
        words = re.findall("`([^`]+)`", validators)
        paths = [
            path for word in words if word.endswith(".py") for path in ROOT.glob(f"*/durabench*/**/{Path(word).name}")
        ]
        names = [word.partition(".")[2] or word for word in words if not word.endswith((".py", ".json", ".jsonl"))]
        assert paths, validators
        for name in names:
            assert any(re.search(rf"(def|class) {name}\b", path.read_text()) for path in paths), name


@pytest.mark.parametrize("door", DOORS)
def test_any_input_is_answered_in_one_line(door, tmp_path):
    good, call = DOORS[door]
    rng = Random(door)
    assert answered(lambda: call(good, tmp_path / "x"), told=door) == 0
    answers = set()
    for number in range(EACH * TIMES):
        bad = of_json(json.loads(good), rng) if door in ("row", "event", "driver") and rng.random() < 0.7 else None
        bad = of_bytes(good[:4096], rng) + good[4096:] if bad is None else bad
        answers.add(answered(lambda bad=bad: call(bad, tmp_path / "x"), told=f"{door}, input {number}: {bad[:300]!r}"))
    assert answers & {2, 3}, "nothing of it was refused: the door is not there"


def changed(path, rng):
    """Make one change in a file of a folder; the file and its bytes before."""
    good = path.read_bytes()
    text = gzip.decompress(good) if path.suffix == ".gz" else good
    by_structure = rng.random() < 0.7 and path.suffix != ".i64"
    if by_structure and path.suffix == ".json":
        text = of_json(json.loads(text), rng)
    elif by_structure:
        some = text.splitlines()
        at = rng.randrange(len(some))
        some[at] = of_json(json.loads(some[at]), rng)
        text = b"\n".join(some) + b"\n"
    else:
        text = of_bytes(text, rng)
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return good


def test_any_folder_is_answered_in_one_line(mine):
    names = ("run.json", "done.json", "plan.json", "trials.jsonl", "floors.jsonl", "plan.jsonl", "samples.i64")
    every = [*(mine / name for name in names), *sorted((mine / "histories").iterdir())[:3]]
    rng = Random("folders")
    answers = set()
    for number in range(100 * TIMES):
        path = rng.choice(every)
        good = changed(path, rng)
        answers.add(answered(lambda: shows(mine), told=f"folder {number}: {path.name}"))
        path.write_bytes(good)
    assert answers == {0, 2}
    assert answered(lambda: shows(mine), told="the good one") == 0

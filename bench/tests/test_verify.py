"""What `durabench verify` says of a deployment that is whatever its URL says, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from durabench import counting
from durabench.verify import look, trouble
from durabench_backends import registry
from durabench_backends.contract import Check, Fact

HERE = Path(__file__).parent
FIELDS = {"id", "status", "value", "origin", "loses", "fix", "evidence"}
CLASSES = {"toy": "Toy", "embedded": "Embedded", "silent": "Silent", "plain": "Plain"}


@pytest.fixture
def typed(typed, monkeypatch):
    """Runs ``durabench verify`` in this process, with the toys' schemes known; (exit status, stdout, stderr)."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    for scheme, name in CLASSES.items():
        monkeypatch.setitem(registry.BACKENDS, scheme, registry.Line(f"verifiable:{name}", schemes=(scheme,)))
    counted = [Check("toy.flushes", "ok", evidence="1 flush per put; wrote 80 KiB, removed")]
    monkeypatch.setattr(counting, "count", lambda *_: counted)

    return lambda *words: typed("verify", *words)


@pytest.fixture
def asked(typed):
    """The JSON document, with its exit status beside it."""

    def run(*words):
        status, out, _ = typed(*words, "--format", "json")
        return {**json.loads(out), "exit": status}

    return run


# ---------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    "query,words,verdict,status",
    [
        ("flush=on", (), "held", 0),
        ("flush=off", (), "broken", 1),
        ("flush=unread", (), "unknown", 3),
        ("flush=off", ("--survive", "client"), "held", 0),
        ("flush=unread", ("--survive", "client"), "held", 0),
        ("flush=late", (), "broken", 1),
        ("flush=late", ("--max-loss", "2s"), "held", 0),
        ("flush=late", ("--max-loss", "0.1"), "broken", 1),
        ("flush=late", ("--survive", "server"), "broken", 1),
        ("flush=on&warn=yes", (), "held", 0),
        ("flush=on&mock=yes", (), "not rated", 3),
        ("flush=off&mock=yes", (), "not rated", 3),
        ("flush=on", ("--probe",), "held", 0),
        ("flush=on&probe=lost", (), "held", 0),
        ("flush=on&probe=lost", ("--probe",), "broken", 1),
        ("flush=unread&probe=lost", ("--probe",), "broken", 1),
        ("flush=on&probe=dies", ("--probe",), "unknown", 3),
        ("flush=off", ("--ignore", "toy.flush=a replica has it"), "held", 0),
        ("flush=unread", ("--ignore", "toy.flush=a replica has it"), "held", 0),
        ("flush=off", ("--ignore", "toy.cache=a replica has it"), "broken", 1),
    ],
)
def test_the_verdict_and_its_exit_status(query, words, verdict, status, asked):
    found = asked(f"toy://host/?{query}", *words)
    assert (found["verdict"], found["exit"]) == (verdict, status), found


def test_a_promise_that_misses_the_goal_breaks_it_though_no_check_says_so(asked):
    assert asked("silent://host/?flush=on")["verdict"] == "held"
    found = asked("silent://host/?flush=off")
    assert (found["verdict"], found["exit"]) == ("broken", 1)
    ignored = asked("silent://host/?flush=off", "--ignore", "toy.cache=known")
    assert ignored["verdict"] == "broken"


def test_a_backend_without_checks_is_judged_by_its_promise(asked):
    assert asked("plain://?flush=on")["exit"] == 0
    assert asked("plain://?flush=off", "--probe")["exit"] == 1
    assert asked("plain://?flush=off")["checks"] == []


def test_for_an_embedded_store_the_server_is_the_client(asked, typed):
    found = asked("embedded://host/?flush=off", "--survive", "server")
    assert (found["verdict"], found["goal"]["survive"]) == ("held", "server")
    assert asked("toy://host/?flush=off", "--survive", "server")["verdict"] == "broken"
    _, out, _ = typed("embedded://host/?flush=off", "--survive", "server")
    assert "embedded store" in out


# ---------------------------------------------------------------------------------------------------- document


def test_the_document_says_everything_by_name(asked):
    found = asked("toy://me:opensesame@host/?flush=late", "--survive", "power", "--max-loss", "0")
    assert found["goal"] == {"survive": "drive", "max_loss_s": 0.0}
    assert found["target"] == "toy://***@host/?flush=late"
    assert found["promise"]["tier"] == "T2 0.5 s"
    assert found["promise"]["may_lose_s"] == {"client": 0.0, "server": 0.5, "machine": 0.5, "drive": 0.5}
    assert {"atomic", "ordered", "source"} <= set(found["promise"])
    assert all(set(check) >= FIELDS for check in found["checks"])
    failed = next(check for check in found["checks"] if check["id"] == "toy.flush")
    assert failed["origin"] == "/etc/toy.conf:7"
    assert failed["fix"] == "toyctl set flush on"
    assert {check["status"] for check in found["checks"]} <= {"ok", "warn", "fail", "skip", "unknown"}


@pytest.mark.parametrize("how", ["refused", "password", "tls", "absent", "lines", "value", "noted", "exit"])
def test_there_is_a_document_and_one_line_where_nothing_could_be_looked_at(how, typed):
    status, out, err = typed(f"toy://me:opensesame@host/?look={how}", "--format", "json")
    found = json.loads(out)
    assert status == 3
    assert (found["verdict"], found["checks"], found["promise"]) == ("unknown", [], None)
    assert err.count("\n") == 1
    assert f"toy://***@host/?look={how}: " in err
    assert "; " in err


@pytest.mark.parametrize(
    "how,mend",
    [
        ("refused", "start the server"),
        ("password", "give a login"),
        ("tls", "TLS"),
        ("absent", "name one that exists"),
        ("noted", "create it: createbox box"),
    ],
)
def test_the_line_says_how_to_mend_it(how, mend, typed):
    _, out, err = typed(f"toy://host/?look={how}")
    assert mend in err
    assert out == "", "one line says it all"


def test_a_missing_client_library_is_could_not_tell_with_the_line_that_installs_it(asked, monkeypatch):
    line = registry.Line("no_such_module:Toy", extra="toy", schemes=("toy",))
    monkeypatch.setitem(registry.BACKENDS, "toy", line)
    found = asked("toy://host/")
    assert (found["verdict"], found["exit"]) == ("unknown", 3)
    assert "pip install 'durabench[toy]'" in found["why"]


@pytest.mark.parametrize(
    "words,said",
    [
        (("foo://host",), "unknown URL scheme 'foo'"),
        (("nothing",), "is no URL"),
        (("toy://[",), "is no URL"),
        (("toy://me:opensesame@host/?flush=maybe",), "flush is on, late, off or unread"),
        (("toy://host/", "--survive", "flood"), "client, server, machine or drive"),
        (("toy://host/", "--max-loss", "some"), "is no time"),
        (("toy://host/", "--ignore", "toy.flush"), "needs a reason"),
        (("toy://host/", "--ignore", "toy.flush= "), "needs a reason"),
        (("toy://host/", "--ignore", "toy.flash=why not"), "toy.flush, toy.cache"),
        (("toy://host/", "--format", "yaml"), "table, json, junit, github, markdown"),
        (("toy://host/", "--format", "json", "--format", "junit"), "only one --format"),
        (("toy://host/", "toy://other/"), "one URL at a time"),
        ((), "a URL is missing"),
    ],
)
def test_what_cannot_be_asked_is_2_and_one_line(words, said, typed):
    status, out, err = typed(*words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert "opensesame" not in err


def test_an_interrupted_look_is_130_with_a_document(asked, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(look, "_bounded", interrupted)
    found = asked("toy://host/")
    assert (found["verdict"], found["exit"]) == ("unknown", 130)


# ---------------------------------------------------------------------------------------------------- probes


def test_what_needs_a_probe_says_so_and_does_not_count(asked):
    found = asked("toy://host/")
    by_id = {check["id"]: check for check in found["checks"]}
    for one in ("toy.proved", "toy.conditional", "toy.flushes"):
        assert (by_id[one]["status"], by_id[one]["evidence"]) == ("skip", "needs --probe")
    assert found["exit"] == 0


def test_a_probe_that_ends_early_leaves_what_it_proved_and_says_what_it_did_not(asked):
    found = asked("toy://host/?probe=dies", "--probe")
    by_id = {check["id"]: check for check in found["checks"]}
    assert by_id["toy.proved"]["status"] == "ok"
    assert by_id["toy.conditional"]["status"] == "unknown"
    assert "reset by peer" in by_id["toy.conditional"]["evidence"]
    assert by_id["toy.flushes"]["status"] == "ok"
    assert "opensesame" not in json.dumps(found)


def test_nothing_is_waited_for_for_ever(asked, monkeypatch):
    monkeypatch.setattr(look, "LOOK_S", 0.3)
    monkeypatch.setattr(look, "PROBE_S", 0.3)
    found = asked("toy://host/?look=hang")
    assert (found["verdict"], found["checks"], found["exit"]) == ("unknown", [], 3)
    assert "no answer within 0.3 s" in found["why"]
    monkeypatch.setattr(look, "LOOK_S", 10)
    found = asked("toy://host/?probe=hang", "--probe")
    by_id = {check["id"]: check for check in found["checks"]}
    assert (found["verdict"], by_id["toy.proved"]["status"]) == ("unknown", "ok")
    assert "did not end" in by_id["toy.conditional"]["evidence"]


@pytest.mark.parametrize("left,verdict,status", [(0, "held", 0), (1, "unknown", 3)])
def test_a_command_that_was_watched_says_what_nobody_else_could_know(left, verdict, status, typed, monkeypatch):
    seen = []

    def watch(argv, url, backend, goal, deadline_s=counting.WATCH_S):
        seen.append((list(argv), url))
        facts = (Fact("toy.flush", "on", "what the program was seen to do"),)
        return counting.Watched(left, facts, (Check("toy.flushes", "ok", "1 per put"),))

    monkeypatch.setattr(counting, "watch", watch)
    url = "toy://host/?flush=unread"
    exited, out, _ = typed(url, "--format", "json", "--", "prog", "--survive", "x")  # after -- all is the program's
    found = json.loads(out)
    assert seen == [(["prog", "--survive", "x"], url)]
    assert (found["verdict"], exited) == (verdict, status)
    by_id = {check["id"]: check for check in found["checks"]}
    assert by_id["toy.flush"]["origin"] == "what the program was seen to do"
    assert by_id["toy.flushes"]["value"] == "1 per put"


# ---------------------------------------------------------------------------------------------------- ignore, explain


def test_what_is_ignored_is_shown_with_its_reason_in_every_format(typed):
    for form in ("table", "json", "junit", "github", "markdown"):
        status, out, _ = typed("toy://host/?flush=off", "--ignore", "toy.flush=a replica has it", "--format", form)
        assert status == 0
        assert "a replica has it" in out, form


def test_a_page_is_printed_with_or_without_a_url(typed):
    for words in (("--explain", "toy.flush"), ("toy://host/", "--explain", "toy.flush")):
        status, out, _ = typed(*words)
        assert status == 0
        assert "Whether a put is flushed" in out
    assert typed("--explain", "toy.flushes")[0] == 0


def test_an_unknown_page_is_2_with_the_nearest(typed):
    status, out, err = typed("--explain", "toy.flash")
    assert (status, out) == (2, "")
    assert "toy.flush" in err


# ---------------------------------------------------------------------------------------------------- formats


def test_several_formats_at_once_each_to_its_file(typed, tmp_path):
    words = [f"--format={form}={tmp_path / form}" for form in ("json", "junit", "github", "markdown")]
    status, out, _ = typed("toy://host/?flush=off", *words, "--format", "table")
    assert status == 1
    assert "✕ broken" in out
    assert json.loads((tmp_path / "json").read_text())["verdict"] == "broken"
    assert ET.parse(tmp_path / "junit").getroot().get("failures") == "1"
    assert "::error title=toy.flush::" in (tmp_path / "github").read_text()
    assert "toyctl set flush on" in (tmp_path / "markdown").read_text()


def test_a_table_says_checks_then_the_answer_then_the_lines_to_paste(typed):
    _, out, _ = typed("toy://host/?flush=off")
    at = [out.index(said) for said in ("✕ toy.flush", "✕ broken", "toy.flush loses: ", "      toyctl set flush on")]
    assert at == sorted(at)
    assert "/etc/toy.conf:7" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 120


def test_a_github_workflow_gets_lines_and_a_summary(typed, monkeypatch, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    status, out, _ = typed("toy://host/?flush=off&warn=yes", "--format", "github")
    assert status == 1
    levels = [line.split(" ")[0] for line in out.splitlines()]
    assert levels == ["::error", "::warning", "::error"]
    assert levels[-1] == "::error"
    assert summary.read_text().startswith("before\n### ✕ toy://host/")
    typed("toy://host/?flush=off", "--format", "table")
    assert summary.read_text().count("###") == 1


def test_junit_has_a_case_per_check_and_one_more_where_no_check_decided(typed):
    cases = {}
    for query in ("flush=off", "flush=unread", "flush=on&mock=yes", "look=refused"):
        _, out, _ = typed(f"toy://host/?{query}", "--format", "junit")
        suite = ET.fromstring(out)
        cases[query] = {case.get("name"): [child.tag for child in case] for case in suite}
        assert suite.get("tests") == str(len(suite))
    assert cases["flush=off"]["toy.flush"] == ["failure"]
    assert cases["flush=unread"]["toy.flush"] == ["error"]
    assert cases["look=refused"] == {"verdict": ["error"]}
    assert cases["flush=on&mock=yes"]["toy.proved"] == ["skipped"]
    assert cases["flush=on&mock=yes"]["toy.mock"] == ["failure"]


@pytest.mark.parametrize("form", ["table", "json", "junit", "github", "markdown"])
@pytest.mark.parametrize("how", ["quotes", "password", "well"])
def test_no_format_shows_a_secret(form, how, typed):
    _, out, err = typed(f"toy://me:opensesame@host/?look={how}&password=opensesame", "--format", form)
    assert "opensesame" not in out + err
    assert "***" in (out or err).replace("\\", "")


def test_secrets_of_the_environment_are_hidden_and_paths_are_not(typed, monkeypatch, tmp_path):
    """A message may quote what a client took from there."""
    monkeypatch.setenv("PGPASSWORD", "x-opensesame-x")
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("SOME_TOKEN", "true")
    url = "toy://host/?flush=on"
    assert "***" not in typed(url)[1]
    for said in ("x-opensesame-x", str(tmp_path), "true"):
        line = trouble.line(url, PermissionError(f"no entry for {said}"))
        assert (said in line) is (said != "x-opensesame-x"), line


# ---------------------------------------------------------------------------------------------------- from outside


def test_a_backend_of_another_package_is_verified_in_seconds(tmp_path):
    """By entry point, in a process of its own; a hanging server ends that process within the deadline."""
    info = tmp_path / "toy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[durabench.backends]\ntoy = verifiable:Toy\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(tmp_path)])}

    def ran(url):
        words = [sys.executable, "-m", "durabench", "verify", url, "--format", "json"]
        return subprocess.run(words, capture_output=True, text=True, check=False, env=env, cwd=tmp_path, timeout=60)

    assert ran("toy://host/?flush=on").returncode == 0
    began = time.monotonic()
    hung = ran("toy://host/?look=hang")
    assert hung.returncode == 3
    assert json.loads(hung.stdout)["checks"] == []
    assert time.monotonic() - began < 45, "the toy sleeps for a minute: nobody must wait for it"


def test_a_look_imports_neither_the_harness_nor_what_only_results_need():
    code = (
        "import sys; sys.argv = ['durabench', 'verify', 'file:///', '--format', 'json']\n"
        "from durabench import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(ran.stderr.split())
    assert "durabench.verify" in loaded
    heavy = {"numpy", "scipy", "matplotlib", "durabench.campaign", "durabench.report", "boto3", "psycopg", "redis"}
    assert not heavy & loaded

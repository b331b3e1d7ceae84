"""A password of 200 characters, whatever they are, is in nothing that any command leaves or says, while it works."""

from __future__ import annotations

import gzip
import html
import json
import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import quoteattr

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabench import login, redact, schedule, service
from durabench.results import Folder

HERE = Path(__file__).parent
PRINTABLE = [chr(code) for code in range(32, 127)]
PIECE = 9
"""So many characters of a password in a row are a piece of it."""


def password_of(seed, length=200):
    """One that is its own decoded form: what is written as %41 cannot be told from an escaped A."""
    rng = random.Random(seed)
    return re.sub("%(?=[0-9A-Fa-f]{2})", "%%", "".join(rng.choice(PRINTABLE) for _ in range(length)))[:length]


def pieces_of(secret):
    """Every piece, as it is and as it may be written."""
    writings = (str, quote, lambda one: quote(one, safe=""), quote_plus, html.escape, lambda one: json.dumps(one)[1:-1])
    for written in dict.fromkeys(write(secret) for write in writings):
        yield from (written[at : at + PIECE] for at in range(0, len(written) - PIECE, 3))


def shows(secret, text):
    return [piece for piece in pieces_of(secret) if piece in text]


# ------------------------------------------------------------------------------------------------ by its parts

PASSWORDS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=8, max_size=200)
QUOTED = {
    "as it is": str,
    "in a URL": lambda one: quote(one, safe=""),
    "in a path": quote,
    "in a form": quote_plus,
    "in small hexadecimal": lambda one: re.sub("%..", lambda hexed: hexed[0].lower(), quote(one, safe="")),
    "in JSON": json.dumps,
    "in JSON as it is": lambda one: json.dumps(one, ensure_ascii=False),
    "in JSON in JSON": lambda one: json.dumps(json.dumps({"said": one})),
    "in HTML": html.escape,
    "in text of HTML": lambda one: html.escape(one, quote=False),
    "in XML": quoteattr,
    "in Python": repr,
    "in bytes": lambda one: repr(one.encode()),
    "in a shell": shlex.quote,
    "in libpq's words": lambda one: "password='" + one.replace("\\", "\\\\").replace("'", "\\'") + "'",
    "in SQL": lambda one: one.replace("'", "''"),
    "in a table of Markdown": lambda one: one.replace("|", "\\|"),
    "on one line": lambda one: " ".join(one.split()),
}


@pytest.mark.parametrize("how", QUOTED)
@settings(deadline=None, max_examples=25)
@given(secret=PASSWORDS)
def test_what_is_known_is_found_in_every_form(how, secret):
    known = redact.Known()
    known.add([secret])
    written = QUOTED[how](secret)
    if len(" ".join(secret.split())) < PIECE:
        return  # nearly all of it is blank
    hidden = known.hidden(f"it said {written}, twice {written}")
    assert "***" in hidden
    assert hidden.count("it said") == 1
    assert not any(secret[at : at + PIECE] in hidden for at in range(len(secret) - PIECE))


@settings(deadline=None)
@given(secret=PASSWORDS)
def test_a_url_is_shown_without_it(secret):
    for url in (
        f"redis://ann:{quote(secret, safe='')}@db.example:6379/0?ssl_cert_reqs=none",
        f"redis://db.example:6379/0?ssl_cert_reqs=none&password={quote(secret, safe='')}",
        f"s3://bucket/path?endpoint_url={quote(f'http://ann:{quote(secret)}@db.example', safe='')}",
    ):
        shown = redact.shown(url)
        assert not shows(secret, shown)
        assert "***" in shown
        assert redact.shown(shown) == shown
        assert redact.redact(shown) == shown
        assert secret in redact.secrets_of(url) or secret in shown


@pytest.mark.parametrize("seed", range(40))
def test_a_pasted_password_is_shown_nowhere(seed):
    secret = password_of(seed)
    for url in (
        f"postgresql://ann:{secret}@h:1/d",
        f"redis://:{secret}@h",
        f"postgresql://h/d?user=x&password={secret}",
    ):
        assert not shows(secret, redact.shown(url))
        assert not shows(secret, " ".join(redact.redact_argv(["durabench", "verify", url, f"--from={url}"])))
    redact.learn(f"redis://:{secret}@h")
    for quoted in QUOTED.values():
        assert not shows(secret, redact.redact(f"why: {quoted(secret)}"))


def test_words_of_ours_are_no_secrets():
    """A verdict that is masked because somebody's password is the same word would be a lie."""
    redact.learn("postgresql://ann:kept@h/d", "redis://:postgres@h", "redis://:step-00000001@h")
    row = {"verdict": "kept", "backend": "postgres", "key": "step-00000001", "why": "kept: nothing of step-00000001"}
    assert redact.redact_all(row) == {**row, "why": "***: nothing of ***"}
    line = json.loads(redact.as_json_lines([{"e": "listing", "keys": ["step-00000001"]}]))
    assert line["keys"] == ["step-00000001"]


def test_files_that_clients_take_passwords_from_are_known(tmp_path, monkeypatch):
    (tmp_path / ".pgpass").write_text("# who\nhost:5432:db:ann:open\\:sesame\n")
    (tmp_path / "service").write_text("[prod]\nhost=h\npassword=hocuspocus\n")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]\naws_secret_access_key = abracadabra\n")
    for name in ("PGPASSFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "service"))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "simsalabim")
    monkeypatch.setenv("DATABASE_URL", "postgresql://ann:alohomora@h/d")
    redact.learn_environment()
    said = "open:sesame hocuspocus abracadabra simsalabim alohomora"
    assert redact.redact(said) == " ".join(["***"] * 5)


# ------------------------------------------------------------------------------------------ who is asked again


def test_a_password_is_asked_for_again(monkeypatch, tmp_path):
    monkeypatch.delenv("PGPASSWORD", raising=False)
    shown = redact.shown("postgresql://ann:open%20sesame@h/d")
    with pytest.raises(login.NoLogin, match="--password-file FILE or PGPASSWORD"):
        login.Logins().of(shown)
    secret = "it's; 100%, @ä/#?"
    for logins in (
        login.Logins([f"postgresql://ann:{quote(secret, safe='')}@h/d"]),
        login.Logins([], written(tmp_path / "password", f"{secret}\nnot this\n")),
    ):
        assert logins.of(shown) == f"postgresql://ann:{quote(secret, safe='')}@h/d"
    monkeypatch.setenv("PGPASSWORD", secret)
    assert login.Logins().of(shown) == f"postgresql://ann:{quote(secret, safe='')}@h/d"
    assert (
        login.Logins()
        .of("redis://h?db=1&password=***&x=1".replace("redis", "postgresql"))
        .count(quote(secret, safe=""))
    )
    assert login.Logins().of("file:///a") == "file:///a"
    with pytest.raises(login.NoLogin, match="whole, with --backend"):
        login.Logins().of("postgresql://***@h/d")
    other = login.Logins(["postgresql://ann:x@elsewhere/d"])
    with pytest.raises(login.NoLogin, match=r"no URL of that run; it has postgresql://ann:\*\*\*@h/d"):
        other.refuse_others([shown])


def test_at_a_terminal_it_is_typed(monkeypatch):
    monkeypatch.delenv("REDISCLI_AUTH", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    asked = []
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: asked.append(prompt) or "typed/in")
    logins = login.Logins()
    assert logins.all_of(("redis://:***@h", "files:rename", "redis://:***@h")) == (
        *("redis://:typed%2Fin@h", "files:rename", "redis://:typed%2Fin@h"),
    )
    assert asked == ["Password of redis://:***@h: "]
    assert redact.redact("it said typed/in") == "it said ***"


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "content, said",
    [(None, "cannot be read"), (b"", "no password"), (b"\xff\xfe", "not UTF-8"), ("folder", "it is not a file")],
)
def test_a_password_file_that_is_none_is_one_line(tmp_path, content, said):
    path = tmp_path / "password"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(login.NoLogin, match=said):
        login.Logins([], path).of("redis://:***@h")


# ------------------------------------------------------------------------------------------- two of one backend


def test_two_urls_of_one_backend_are_told_apart(typed, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    ways = {"a": "in-place", "b": "fsync-dir"}
    urls = [f"file://{tmp_path}/{name}?write={way}" for name, way in ways.items()]
    words = [word for url in urls for word in ("--backend", url)]
    out = tmp_path / "run"
    status, said, _ = typed(
        *("run", *words, "--workload", "append", "--fault", "none", "--fault", "kill-client", "--trials", 1),
        *("--dir", tmp_path / "disk", "--out", out, "--format", "json"),
    )
    assert status == 0
    cells = json.loads(said)["cells"]
    assert {(cell["setting"], cell["url"], cell["tier"]) for cell in cells} == {
        ("live", urls[0], "T1"),
        ("live", urls[1], "T3"),
    }
    assert all(cell["trials"] == 1 for cell in cells)
    run = Folder.open(out).run
    labels = {f"files:live ({url})" for url in urls}
    assert labels <= set(run["promises"]) & set(run["targets"]) & set(run["versions"])
    assert {run["promises"][label]["tier"] for label in labels} == {"T1", "T3"}
    assert typed("judge", out)[0] == 0
    assert typed("report", out, "--html", tmp_path / "page.html")[0] in (0, 3)
    page = (tmp_path / "page.html").read_text()
    assert all(html.escape(label) in page for label in labels)
    (row,) = [row for row in Folder.open(out).trials() if row["url"] == urls[0] and row["fault"] == "kill-client"]
    assert typed("replay", out, row["trial"])[0] == 0


def test_two_urls_that_read_alike_are_refused(typed, tmp_path):
    (tmp_path / "a").mkdir()
    words = ["--backend", "redis://:onepassword@127.0.0.1:1", "--backend", "redis://:another@127.0.0.1:1"]
    status, _, err = typed("run", *words, "--trials", 1, "--out", tmp_path / "run")
    assert status == 2
    assert "two URLs read as redis://:***@127.0.0.1:1" in err
    assert "another" not in err
    targets = schedule.targets_of("file:///a") + schedule.targets_of("file:///a")
    schedule.refuse_alike(targets)


def test_an_older_folder_with_one_promise_for_two_urls_is_not_judged(typed, tmp_path):
    """What today's run writes, as schema 2 named it."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    words = [word for name in ("a", "b") for word in ("--backend", f"file://{tmp_path}/{name}?write=fsync-dir")]
    typed("run", *words, "--fault", "none", "--trials", 1, "--dir", tmp_path / "disk", "--out", tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    run = json.loads(path.read_text())
    run["schema_version"] = 2
    run["promises"] = {label.partition(" ")[0]: promise for label, promise in run["promises"].items()}
    path.write_text(json.dumps(run))
    status, _, err = typed("judge", tmp_path / "run")
    assert (status, err.count("\n")) == (3, 1)
    assert "one promise for two URLs of files:live" in err


# --------------------------------------------------------------------------------------------- on real servers

SERVERS = {"redis": "aof-always", "valkey": "aof-always", "postgres": "on", "guarded:Guarded": "unversioned"}


@pytest.fixture(scope="module", params=list(SERVERS))
def guarded(request, tmp_path_factory):
    """A server that asks for a password of 200 characters: how its URL begins, the password, where it is."""
    name, secret = request.param, password_of(len(request.param))
    folder = tmp_path_factory.mktemp("guarded")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("GUARDED_KEY", secret)
        with service.running(name, SERVERS[name], folder / "run") as running:
            port = running.machine._ports["store/" + {"postgres": "postgres", "guarded:Guarded": "s3"}.get(name, name)]
            with asking(name, port, running.root, secret):
                yield name, secret, port


@contextmanager
def asking(name, port, root, secret):
    if name == "postgres":
        import psycopg
        from psycopg import sql

        hba = root / "data" / "pg_hba.conf"
        hba.write_text(f"host all ann 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE ROLE ann LOGIN SUPERUSER PASSWORD {}").format(secret))
            connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)
    elif name in ("redis", "valkey"):
        import redis as client

        with closing(client.Redis(port=port)) as admin:
            admin.execute_command("ACL", "SETUSER", "ann", "on", f">{secret}", "~*", "&*", "+@all")
            admin.config_set("requirepass", secret)
    yield


def url_of(name, port, secret, *, escaped=True):
    """The URL of a person; keys of S3 are in the environment."""
    if name == "guarded:Guarded":
        return f"s3://durabench/here?endpoint_url=http://127.0.0.1:{port}&region=us-east-1"
    login_of = f"ann:{quote(secret, safe='') if escaped else secret}@127.0.0.1:{port}"
    return f"postgresql://{login_of}/postgres" if name == "postgres" else f"{name}://{login_of}/0"


@pytest.fixture
def told(guarded, tmp_path):
    """Runs commands in a folder; fails if the password is then in a file, in what was said, or in a list of processes.
    Gives exit status, stdout and stderr.
    """
    name, secret, _ = guarded
    hidden = set()

    def run(*words, secrets=(secret,), **env):
        argv = [sys.executable, "-m", "durabench", *map(str, words)]
        if words[0] == "pytest":
            argv = [sys.executable, "-m", *map(str, words)]
        keys = {"AWS_ACCESS_KEY_ID": "durabench", "AWS_SECRET_ACCESS_KEY": secrets[0]} if "guarded" in name else {}
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PYTEST"))}
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**clean, **keys, "DURABENCH_SHARED_DEVICE": "1", **env},
        )
        listed, stop = {}, threading.Event()
        watcher = threading.Thread(target=watch, args=(started.pid, listed, stop))
        watcher.start()
        try:
            out, err = started.communicate(timeout=240)
        finally:
            started.kill()
            stop.set()
            watcher.join()
        hidden.update(secrets)
        for each in hidden:
            for what, text in (("stdout", out), ("stderr", err), *files_of(tmp_path)):
                assert not shows(each, text), (what, words)
            own = listed.pop(started.pid, "")  # the last look: at the begin it is as it was typed
            for pid, line in listed.items():
                assert not shows(each, line), ("argv of a child", pid, line)
            assert not shows(each, own), "its own argv"
        assert "Traceback" not in err
        return started.returncode, out, err

    return run


def watch(pid, listed, stop):
    """The last command line seen of a process and of all that it started, until it ends."""
    main = psutil.Process(pid)
    while not stop.wait(0.02):
        with suppress(psutil.Error, OSError):
            for process in (main, *main.children(recursive=True)):
                with suppress(psutil.Error, OSError):
                    line = "\0".join(process.cmdline())
                    if line:
                        listed[process.pid] = line


def files_of(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "password":
            content = path.read_bytes()
            yield str(path), (gzip.decompress(content) if path.suffix == ".gz" else content).decode(errors="replace")


RUN = ("--workload", "append", "--fault", "none", "--fault", "kill-client", "--trials", 1, "--seed", 1)


def test_no_command_shows_it(guarded, told, tmp_path):
    name, secret, port = guarded
    url, raw = url_of(name, port, secret), url_of(name, port, secret, escaped=False)
    for each, form in ((url, "json"), (raw, "table")):
        status, _, err = told("verify", each, "--format", form, "--survive", "client")
        assert (status, err) == (0, ""), err
    told("verify", raw, "--format", "junit=x.xml", "--format", "markdown=x.md", "--format", "github", "--probe")
    out = tmp_path / "run"
    status, said, err = told(
        "run", "--backend", raw, *RUN, "--dir", tmp_path / "disk", "--out", out, "--format", "json"
    )
    assert status == 0, err
    assert {cell["url"] for cell in json.loads(said)["cells"]} == {redact.shown(raw)}
    assert told("report", out, "--html", "page.html")[0] == 0
    assert told("judge", out)[0] == 0
    trial = next(row["trial"] for row in Folder.open(out).trials() if row["control"] is None)
    (tmp_path / "password").write_text(f"{secret}\n")
    assert told("replay", out, trial, "--password-file", "password", "--dir", tmp_path / "disk")[0] == 0
    if name != "guarded:Guarded":
        status, _, err = told("replay", out, trial)
        assert (status, err.count("\n")) == (2, 1), err
        assert "password was not recorded" in err
    status, said, err = told("plan", "--from", f"{raw}#nothing-there", "--quick", "--out", "plan")
    assert status in (2, 3), err
    assert len(err.strip().splitlines()[-1]) < 600


def test_a_run_goes_on_with_it(guarded, told, tmp_path):
    name, secret, port = guarded
    out, url = tmp_path / "run", url_of(name, port, secret)
    assert told("run", "--backend", url, *RUN, "--dir", tmp_path / "disk", "--out", out)[0] == 0
    variable = {"postgres": "PGPASSWORD", "redis": "REDISCLI_AUTH", "valkey": "VALKEYCLI_AUTH"}.get(name, "UNUSED")
    (tmp_path / "password").write_text(secret)
    ways = [(("--backend", url), {}), (("--password-file", "password"), {}), ((), {variable: secret})]
    for words, env in ways:
        (out / "done.json").unlink()
        rows = (out / "trials.jsonl").read_text().splitlines(keepends=True)
        (out / "trials.jsonl").write_text("".join(rows[:-1]))
        status, _, err = told("run", "--resume", out, *words, **env)
        assert status == 0, err
        assert len((out / "trials.jsonl").read_text().splitlines()) == len(rows)
    (out / "done.json").unlink()
    if name != "guarded:Guarded":
        status, _, err = told("run", "--resume", out)
        assert (status, err.count("\n")) == (2, 1), err
        status, _, err = told("run", "--resume", out, "--backend", url.replace("127.0.0.1", "localhost"))
        assert status == 2
        assert "no URL of that run" in err


def test_a_wrong_one_is_one_line(guarded, told, tmp_path):
    name, _, port = guarded
    wrong = password_of("wrong")
    for each in (url_of(name, port, wrong), url_of(name, port, wrong, escaped=False)):
        status, _, err = told("verify", each, secrets=(wrong,))
        assert (status, err.count("\n")) == (3, 1), err
        told("verify", each, "--format", "json", secrets=(wrong,))
    words = ("run", "--backend", each, *RUN, "--dir", tmp_path / "disk", "--out", tmp_path / "run")
    status, _, err = told(*words, secrets=(wrong,))
    assert status == 3, err
    assert "does not come up" in err


def test_pytest_does_not_show_it(guarded, told, tmp_path):
    name, secret, port = guarded
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for each, secrets in ((secret, (secret,)), (password_of("wrong"), (password_of("wrong"),))):
        url = url_of(name, port, each, escaped=False)
        words = ("pytest", "--junitxml=out.xml", "-rA", "-l", "-v", "-p", "durabench", "--durabench", url)
        status, _, err = told(
            *words, "--durabench-survive", "client", secrets=secrets, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
        )
        assert status == (0 if each == secret else 1), err


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:{}@bucket/here",
        "s3://bucket?secret_key={}",
        "file:///tmp?password={}",
        "sqlite:////tmp/x.db?password={}",
        "rediss://:{}@127.0.0.1:1",
        "gopher://x:{}@h",
    ],
)
@pytest.mark.parametrize("seed, escaped", [(0, True), (1, False), (2, False)])
def test_where_no_secret_belongs_it_is_one_line(typed, tmp_path, url, seed, escaped, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secret = password_of(seed)
    url = url.format(quote(secret, safe="") if escaped else secret)
    for words in (("verify", url), ("run", "--backend", url, "--trials", 1), ("verify", "file:///tmp", url),
                  ("report", url), ("judge", url), ("replay", url, 1), ("compare", url, url), ("list", url), (url,),
                  ("plan", "--from", url, "--quick"), ("run", "--profile", url), ("run", "--seed", url)):  # fmt: skip
        if words[0] == "run" and url.startswith("rediss"):
            continue  # would be tried for a minute
        status, out, err = typed(*words)
        assert status in (2, 3), (words, out, err)
        assert not shows(secret, out + err), (words, err)
        assert "Traceback" not in err
    for what, text in files_of(tmp_path):
        assert not shows(secret, text), what

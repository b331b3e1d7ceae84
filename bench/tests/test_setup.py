"""The set-up: what a fresh clone, a killed start, two starts at once and a missing thing lead to.

The real bootstrap runs here, in a toy checkout whose lock names one tiny wheel beside it: no network, no index.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from durabench_backends import registry

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
BASE = getattr(sys, "_base_executable", None) or sys.executable
DEADLINE_S = 240

BACKEND = """
import os, pathlib, time, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    here = pathlib.Path(__file__).parent
    if os.access(here, os.W_OK):
        (here / "building").touch()
    for _ in range(600):  # a gate lets a test strike in the middle of the installation
        if not (here / "gate").exists():
            break
        time.sleep(0.1)
    name = "durabench-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("durabench.pth", str(here / "bench"))
        info = "durabench-0.1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: durabench\\nVersion: 0.1.0\\n")
        kind = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(info + "WHEEL", kind)
        wheel.writestr(info + "RECORD", "")
    return name
"""

PROGRAM = """
import json, sys, tiny
print(json.dumps({"arguments": sys.argv[1:], "prefix": sys.prefix, "tiny": tiny.VERSION, "path": sys.path}))
"""


def make_wheel(folder: Path, version: str) -> str:
    """A wheel of one module in ``folder``; the lock's line for it."""
    path = folder / f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info/"
    files = {
        "tiny.py": f"VERSION = {version!r}\n",
        info + "METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text.encode())}\n")
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(info + "RECORD", "".join(lines) + info + "RECORD,,\n")
    return f"tiny=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


class Checkout:
    """A toy checkout with the real bootstrap in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.wheels = folder / "wheels"
        self.home = folder / "home"
        for made in (self.root / "bench" / "durabench", self.wheels, self.home):
            made.mkdir(parents=True)
        shutil.copy(ROOT / "bench" / "__main__.py", self.root / "bench")
        (self.root / "bench" / "durabench" / "__init__.py").touch()
        (self.root / "bench" / "durabench" / "__main__.py").write_text(PROGRAM)
        (self.root / "tiny_backend.py").write_text(BACKEND)
        (self.root / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "tiny_backend"\nbackend-path = ["."]\n'
            '[project]\nname = "durabench"\nversion = "0.1.0"\n'
        )
        self.lock = self.root / "requirements.lock"
        self.version = "1.0"
        self.lock.write_text(make_wheel(self.wheels, self.version))

    def relock(self, version: str) -> None:
        self.version = version
        self.lock.write_text(make_wheel(self.wheels, version))

    @property
    def environment(self) -> dict[str, str]:
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "DURABENCH", "XDG"))}
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        return {**keep, **pip, "HOME": str(self.home)}

    def start(self, *arguments: str, python: str = BASE, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [python, str(self.root / "bench"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env={**self.environment, **environment},
        )

    def run(self, *arguments: str, python: str = BASE, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, python=python, **environment)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def first_starts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, list[tuple[int, str, str]]]:
    """A checkout after two first starts at once, and what each said. Tests leave it as they found it."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    starts = [checkout.start("run", "--seed", str(number)) for number in range(2)]
    said = [start.communicate(timeout=DEADLINE_S) for start in starts]
    return checkout, [(start.returncode, *texts) for start, texts in zip(starts, said, strict=True)]


@pytest.fixture
def checkout(first_starts):
    return first_starts[0]


def load_bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bench" / "__main__.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_start_installs_the_lock_and_becomes_the_command(first_starts):
    checkout, said = first_starts
    for number, (status, out, err) in enumerate(said):
        assert status == 0, err
        document = json.loads(out)  # nothing but the command's own words is on stdout
        assert document["arguments"] == ["run", "--seed", str(number)]
        assert document["tiny"] == "1.0"
        assert Path(document["prefix"]).samefile(checkout.root / ".venv")


def test_two_first_starts_at_once_make_one_environment(first_starts):
    assert sum("ready after" in err for _, _, err in first_starts[1]) == 1


def test_a_later_start_installs_nothing_and_says_nothing(checkout):
    status, out, err = checkout.run("list", PIP_FIND_LINKS="/nonexistent")
    assert (status, err) == (0, "")
    assert json.loads(out)["arguments"] == ["list"]


def test_the_callers_folder_and_environment_do_not_leak_in(checkout):
    (checkout.home / "tiny.py").write_text("VERSION = 'from the caller'\n")
    other = checkout.home / "other"
    subprocess.run([BASE, "-m", "venv", "--without-pip", str(other)], check=True, timeout=DEADLINE_S)
    try:
        status, out, err = checkout.run("list", python=str(other / "bin" / "python"), VIRTUAL_ENV=str(other))
    finally:
        (checkout.home / "tiny.py").unlink()
    assert status == 0, err
    assert json.loads(out)["tiny"] == checkout.version
    assert Path(json.loads(out)["prefix"]).samefile(checkout.root / ".venv")


def test_a_changed_project_is_installed_again_without_its_libraries(checkout):
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write('description = "changed"\n')
    # With no wheels at hand this can only work where the libraries are left alone.
    status, _, err = checkout.run("list", PIP_FIND_LINKS="/nonexistent")
    assert status == 0, err
    assert "ready after" in err
    assert checkout.run("list")[2] == ""


def test_a_changed_lock_is_installed_again(checkout):
    checkout.relock("2.0")
    status, out, err = checkout.run("list")
    assert status == 0, err
    assert json.loads(out)["tiny"] == "2.0"


def test_a_start_after_a_killed_one_waits_for_its_installer_and_then_mends(checkout):
    gate, building = checkout.root / "gate", checkout.root / "building"
    building.unlink(missing_ok=True)
    gate.touch()
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write('license = "Apache-2.0"\n')
    first = checkout.start("list")
    wait_for(building.exists)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=DEADLINE_S)
    assert not (checkout.root / ".venv" / "durabench-stamp").exists()
    second = checkout.start("list")
    assert second.stderr
    assert "waiting for the set-up of another start" in second.stderr.readline()
    gate.unlink()
    out, err = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 0, err
    assert json.loads(out)["tiny"] == checkout.version
    assert checkout.run("list")[2] == ""


def test_a_failed_set_up_says_so_in_one_line_with_the_mend_and_is_done_again_from_the_start(checkout):
    checkout.relock("3.0")
    right = checkout.lock.read_text()
    checkout.lock.write_text(re.sub(r"sha256:\w+", "sha256:" + "0" * 64, right))
    status, out, err = checkout.run("run")
    assert (status, out) == (3, "")
    assert "Traceback" not in err
    assert re.search(r"^durabench: error: pip, installing the libraries .*; mend: the index .*$", err, re.MULTILINE), (
        err
    )
    checkout.lock.write_text(right)
    # As a power cut leaves a file that was just written: present, empty, and installed as far as pip can tell.
    next(checkout.root.glob(".venv/lib/python*/site-packages/durabench.pth")).write_text("")
    status, out, err = checkout.run("run")
    assert status == 0, err
    assert json.loads(out)["tiny"] == "3.0"


@pytest.fixture
def open_folder():
    """A folder that every user may enter; pytest's own may not be."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_checkout_that_may_not_be_written_is_set_up_in_the_users_cache(open_folder):
    checkout = Checkout(open_folder)
    python, prefix = BASE, []
    if os.geteuid() == 0:  # root may write anywhere, so somebody else starts it
        prefix = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]
        python = next(path for path in (BASE, "/usr/bin/python3") if runs([*prefix, path, "-c", ""]))
        shutil.chown(checkout.home, "nobody", "nogroup")
    else:
        checkout.root.chmod(0o555)
    argv = [*prefix, python, str(checkout.root / "bench"), "list"]
    done = subprocess.run(
        argv,
        env=checkout.environment,
        cwd=checkout.home,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    checkout.root.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["prefix"]).is_relative_to(checkout.home / ".cache" / "durabench")


def runs(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, cwd="/", timeout=DEADLINE_S, check=False).returncode == 0


def test_a_folder_that_is_no_environment_is_never_emptied(tmp_path):
    checkout = Checkout(tmp_path)
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "thesis.txt").write_text("three years of work")
    status, _, err = checkout.run("list")
    assert status == 3
    assert "is not an environment of Python; mend: " in err
    assert (checkout.root / ".venv" / "thesis.txt").read_text() == "three years of work"


@pytest.mark.parametrize(
    "state, said",
    [("old\n3.9\n/x\nwith pip", "needs Python 3.11 or newer"), ("bare\n3.12\n/x\nwith pip", "python3.12-venv")],
)
def test_an_interpreter_that_cannot_do_it_is_named_with_the_mend(tmp_path, monkeypatch, state, said):
    bootstrap = load_bootstrap()
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho '{state}'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(bootstrap.SetupFailed, match=rf"{said}.*; ?mend: |; mend: .*{said}"):
        bootstrap.base_interpreter()
    (tmp_path / "python3.12").symlink_to(BASE)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(bootstrap.base_interpreter()).exists()  # a newer one on PATH is used instead


@pytest.mark.parametrize(
    "said, mend",
    [
        ("OSError: [Errno 28] No space left on device", "make room"),
        ("Failed to establish: NewConnectionError(... name resolution)", "no connection"),
        ("ERROR: No matching distribution found for tiny==1.0", "no such wheel"),
        ("The virtual environment was not created because ensurepip is not available.", "python3-venv"),
    ],
)
def test_a_failed_step_says_what_would_mend_it(said, mend):
    assert mend in load_bootstrap().mend(["one", said, "three"])


def test_the_bootstrap_can_be_read_by_interpreters_that_are_too_old():
    source = (ROOT / "bench" / "__main__.py").read_text()
    ast.parse(source, feature_version=(3, 6))
    for name in re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE):
        assert name in sys.stdlib_module_names


def test_every_line_of_the_lock_is_exact_and_hashed_and_names_no_place():
    text = (ROOT / "requirements.lock").read_text()
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"://|--(extra-)?index" r"-url|--find" r"-links|\s(/|\./|file:)", body)
    entries = re.split(r"\n(?=[a-z0-9])", body.replace("--only-binary :all:\n", ""))
    assert len(entries) > 50
    for entry in entries:
        assert re.match(r"[a-z0-9][a-z0-9.-]*==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", entry, re.DOTALL), entry


def test_the_lock_has_all_that_the_project_and_its_extras_ask_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {
        *project["dependencies"],
        *(line for extra in ("postgres", "redis", "s3", "vm", "dev") for line in extras[extra]),
    }
    locked = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    names = {re.split(r"[\[<>=; ]", line)[0].lower().replace("_", "-") for line in asked}
    assert names <= locked


def test_a_wheel_built_through_the_sdist_has_every_module_and_nothing_else(tmp_path):
    before = modules()
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert before <= inside <= modules()  # a checkout that somebody edits meanwhile is no failure


def modules() -> set[str]:
    names = ("bench/durabench", "backends/durabench_backends", "vm/durabench_model", "vm/durabench_vm")
    rooms = [ROOT / name for name in names]
    return {
        str(path.relative_to(room.parent))
        for room in rooms
        for path in room.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_import_contracts_name_every_adapter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    adapters = sorted({".".join(re.split("[.:]", line.target)[:2]) for line in registry.BACKENDS.values()})
    named = [sorted(contract.get("forbidden_modules", contract.get("modules", []))) for contract in contracts]
    assert named.count(adapters) == 2  # the harness imports none of them, and none of them another one


def wait_for(true) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, "nothing happened by the deadline"
        time.sleep(0.02)

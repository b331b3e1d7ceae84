"""`pytest --durabench URL`: an item per check of a live deployment, and nothing at all without the option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def project(tmp_path):
    """Somebody's project with one test, in an environment where the toys' scheme is known; runs its pytest."""
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    info = tmp_path / "site" / "toy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[durabench.backends]\ntoy = verifiable:Toy\n")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "CI"))}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of others take seconds
    env["TOY_LOG"] = str(tmp_path / "toy.log")
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), str(info.parent)])

    def run(*words):
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "--junitxml=out.xml",
                "-p",
                "no:cacheprovider",
                "-p",
                "durabench",
                "-ra",
                *words,
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=env,
            timeout=120,
        )
        found = {}
        for case in ET.parse(tmp_path / "out.xml").iter("testcase") if (tmp_path / "out.xml").exists() else ():
            found[case.get("name")] = [child.tag for child in case if not child.tag.startswith("system-")]
        return ran, found

    return run


def test_one_item_per_check(project):
    ran, found = project("--durabench", "toy://me:opensesame@host/?flush=off&warn=yes")
    assert ran.returncode == 1
    assert found["toy.flush"] == ["failure"]
    assert found["toy.cache"] == []
    assert found["toy.proved"] == ["skipped"]
    assert found["test_own"] == []
    assert "toyctl set flush on" in ran.stdout
    assert "write back" in ran.stdout, "a warning is shown"
    assert "opensesame" not in ran.stdout + ran.stderr


def test_a_good_deployment_passes_and_options_say_what_good_is(project):
    url = "toy://host/?flush=late"
    assert project("--durabench", url)[0].returncode == 1
    assert project("--durabench", url, "--durabench-max-loss", "2s")[0].returncode == 0
    assert project("--durabench", url, "--durabench-survive", "client")[0].returncode == 0
    ran, found = project("--durabench", url, "--durabench-ignore", "toy.flush=a replica has it")
    assert ran.returncode == 0
    assert found["toy.flush"] == ["skipped"]
    assert "a replica has it" in ran.stdout


def test_what_could_not_be_looked_at_is_a_failed_item(project):
    ran, found = project("--durabench", "toy://host/?look=refused", "--durabench", "toy://host/?flush=on")
    assert ran.returncode == 1
    assert found["verdict"] == ["failure"]
    assert found["toy.flush"] == []


def test_items_are_chosen_by_name_and_by_marker(project):
    ran, found = project("--durabench", "toy://host/", "-m", "durabench", "-k", "flush and not flushes")
    assert ran.returncode == 0, ran.stdout
    assert list(found) == ["toy.flush"]


def test_a_warning_is_shown_and_never_fails_a_deployment_that_holds(project, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    ran, found = project("--durabench", "toy://host/?warn=yes")
    assert ran.returncode == 0, ran.stdout
    assert found["toy.cache"] == []
    assert "write back" in ran.stdout
    ignored = "[pytest]\nfilterwarnings =\n    error\n    ignore:toy.cache\n"
    (tmp_path / "pytest.ini").write_text(ignored)
    quiet, _ = project("--durabench", "toy://host/?warn=yes")
    assert quiet.returncode == 0
    assert "write back" not in quiet.stdout


def test_under_xdist_a_deployment_is_looked_at_and_probed_once(project, tmp_path):
    ran, found = project(
        "-p", "xdist", "-n", "3", "--durabench", "toy://me:opensesame@host/?flush=on&warn=yes", "--durabench-probe"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert set(found) == {"test_own", "toy.flush", "toy.cache", "toy.proved", "toy.conditional", "toy.flushes"}
    assert (tmp_path / "toy.log").read_text().split() == ["inspect", "probe"]
    assert "write back" in ran.stdout, "a warning is shown"
    assert "opensesame" not in ran.stdout + ran.stderr


def test_under_xdist_what_fails_fails_and_what_cannot_be_asked_is_a_usage_error(project):
    ran, found = project("-p", "xdist", "-n", "2", "--durabench", "toy://host/?flush=off")
    assert ran.returncode == 1
    assert found["toy.flush"] == ["failure"]
    ran, _ = project("-p", "xdist", "-n", "2", "--durabench", "foo://x")
    assert ran.returncode == 4
    assert "--durabench" in ran.stderr


def test_two_logins_of_one_host_have_ids_of_their_own_without_any_password(project):
    ran, _ = project(
        "--collect-only",
        "-q",
        *("--durabench", "toy://me:opensesame@host/"),
        *("--durabench", "toy://you:moresesame@host/"),
    )
    ids = [line for line in ran.stdout.splitlines() if line.endswith("toy.flush")]
    assert len(set(ids)) == 2, ran.stdout
    assert "sesame" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("words", [("--durabench", "foo://x"), ("--durabench", "toy://h", "--durabench-survive", "x")])
def test_what_cannot_be_asked_is_a_usage_error(words, project):
    ran, _ = project(*words)
    assert ran.returncode == 4
    assert "--durabench" in ran.stderr


LOADED = """
import sys

def test_loaded():
    loaded = {name for name in sys.modules if name.partition(".")[0] in ("durabench", "durabench_backends", "rich")}
    assert loaded == {"durabench", "durabench.pytest_plugin"}
"""


def test_without_the_option_nothing_is_loaded_but_the_plugin(project, tmp_path):
    (tmp_path / "test_own.py").write_text(LOADED)
    ran, found = project()
    assert ran.returncode == 0, ran.stdout
    assert found == {"test_loaded": []}

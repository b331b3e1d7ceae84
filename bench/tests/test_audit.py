"""The step of CI that asks for known vulnerabilities: what is known fails, what nobody answered is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[2] / ".ci" / "audit.py"
GOOD = {"name": "good", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["3"]}]}
SKIPPED = {"name": "absent", "skip_reason": "Dependency not found on PyPI and could not be audited: absent (1)"}


@pytest.fixture
def audit(tmp_path):
    """Run the step with a pip-audit that says what is given."""

    def run(said, err="", status=0):
        program = tmp_path / "pip-audit"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nprint({said!r})\nprint({err!r}, file=sys.stderr)\nsys.exit({status})\n"
        )
        program.chmod(0o755)
        return subprocess.run(
            [sys.executable, AUDIT, program, "requirements.lock"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def test_what_is_known_fails_and_names_the_mend(audit):
    ran = audit(json.dumps({"dependencies": [GOOD, BAD]}), status=1)
    assert ran.returncode == 1
    assert "bad 2: PYSEC-1, mended in 3" in ran.stdout
    assert "2 of 2 libraries were audited" in ran.stdout


def test_what_is_known_fails_beside_what_could_not_be_asked(audit):
    ran = audit(json.dumps({"dependencies": [SKIPPED, BAD]}), status=1)
    assert ran.returncode == 1
    assert "1 of 2 libraries were audited\nNOT AUDITED: " in ran.stdout


def test_an_index_without_answers_is_told_and_never_a_success(audit):
    ran = audit(json.dumps({"dependencies": [SKIPPED, SKIPPED]}), "No known vulnerabilities found")
    assert ran.returncode == 0
    assert "0 of 2 libraries were audited\nNOT AUDITED: Dependency not found" in ran.stdout
    assert "No known" not in ran.stdout


def test_no_connection_is_told_and_never_a_success(audit):
    ran = audit("", "ERROR: could not connect to PyPI's vulnerability feed", 1)
    assert ran.returncode == 0
    assert ran.stdout.startswith("NOT AUDITED: ERROR: could not connect")


def test_a_whole_audit_says_of_how_many(audit):
    ran = audit(json.dumps({"dependencies": [GOOD, GOOD]}))
    assert (ran.returncode, ran.stdout) == (0, "2 of 2 libraries were audited\n")

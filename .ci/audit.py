"""Known vulnerabilities of what requirements.lock installs: ``audit.py PIP-AUDIT LOCK``.

Exit status 1 where one is known and not accepted here. pip-audit exits 0, and says that it found nothing, also where
the index has no such answers: this tells what was asked in vain, and never calls that a success.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

ACCEPTED: dict[str, str] = {}
"""Id of a vulnerability → why it does not matter here."""
DEADLINE_S = 600


def main(program: str, lock: str) -> int:
    """Ask, and say what came of it."""
    argv = [program, "-r", lock, "--require-hashes", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        libraries: list[dict[str, Any]] = json.loads(ran.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return not_audited(f"no answer in {DEADLINE_S} s")
    except (ValueError, KeyError):
        return not_audited((ran.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1])
    return answer(libraries)


def answer(libraries: list[dict[str, Any]]) -> int:
    """What is known of each library; 1 where something is known and not accepted."""
    skipped = [each["skip_reason"] for each in libraries if "skip_reason" in each]
    status = 0
    for each in libraries:
        for known in each.get("vulns", ()):
            reason = next((ACCEPTED[one] for one in (known["id"], *known.get("aliases", ())) if one in ACCEPTED), None)
            mend = ", ".join(known.get("fix_versions", ())) or "no version yet"
            said = f"accepted: {reason}" if reason else f"mended in {mend}"
            print(f"{each['name']} {each['version']}: {known['id']}, {said}")
            status = status if reason else 1
    audited = len(libraries) - len(skipped)
    print(f"{audited} of {len(libraries)} libraries were audited")
    if skipped or not libraries:
        not_audited(skipped[0] if skipped else "pip-audit named no library")
    return status


def not_audited(why: str) -> int:
    """Say it, without failing for the network's sake."""
    print(f"NOT AUDITED: {why}; mend: run .ci/run where the package index answers for single versions")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

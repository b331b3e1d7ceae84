"""What the READMEs say is so: commands and options exist, names are complete, links lead somewhere, examples load."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

import durabench
import durabench_backends
from durabench import fault, workload
from durabench.cli import app
from durabench.profile import Power, Profile
from durabench.report import expectations
from durabench.report.output import BEGIN, END
from durabench_backends import registry

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bench" / "durabench"
README = (ROOT / "README.md").read_text()
BENCH = (ROOT / "bench" / "README.md").read_text()
READMES = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("[a-z]*/README.md"))
COMMANDS = typer.main.get_command(app).commands


def outside_of_marks(text):
    """A README without what `report --write` put into it."""
    return text.partition(BEGIN)[0] + text.partition(END)[2]


def shown(text):
    """Every command line of ours that a text shows, in code, as words, without its comment."""
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^(?:\$ )?((?:durabench|python3 bench) .+)$", blocks, re.MULTILINE)
    running = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines += re.findall(r"(?<!`)`((?:durabench|python3 bench)\s[^`]+)`", running)
    words = [shlex.split(line.replace("\n", " ").replace("…", ""), comments=True) for line in lines]
    return [line for line in words if arguments(line)]


def arguments(words):
    """The command and its arguments, without the program."""
    return words[1:] if words[0] == "durabench" else words[2:]


def described(heading):
    """The part of README.md below a heading."""
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_column(text):
    """The first cells of a table's lines, without ticks, without head and rule."""
    cells = [line.split("|")[1].strip().strip("`") for line in text.splitlines() if line.startswith("|")]
    return [cell for cell in cells[1:] if not cell.startswith("---")]


# --- commands


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_shown_exist_with_their_options(path):
    for words in shown(outside_of_marks(path.read_text())):
        name, *rest = arguments(words)
        rest = rest[: rest.index("--")] if "--" in rest else rest  # after it comes somebody's program
        if name in ("test", "COMMAND"):
            continue
        assert name in COMMANDS, words
        if name == "vm":  # its words are the scripts', which parse them themselves
            assert (ROOT / "vm" / rest[0]).exists(), words
            continue
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        asked = {word.partition("=")[0].partition("[")[0].partition("|")[0] for word in rest if word.startswith("--")}
        assert asked <= options | {"--help"}, words


def test_a_made_up_option_would_be_seen():
    block = "```\n$ durabench lst  # what\npython3 bench run     # all of it\n```\n"
    assert shown(f"`durabench run --no-such`\n{block}durabench is\n") == [
        ["durabench", "lst"],
        ["python3", "bench", "run"],
        ["durabench", "run", "--no-such"],
    ]


def test_commands_with_a_prompt_can_be_typed():
    typed = [shlex.split(line) for line in re.findall(r"^\$ durabench (.+)$", README, re.MULTILINE)]
    assert len(typed) >= 4
    for name, *rest in typed:
        COMMANDS[name].make_context(name, list(rest))


def test_every_command_and_every_option_is_described():
    commands = described("Commands")
    headings = " ".join(re.findall(r"^### (.+)$", commands, re.MULTILINE))
    text = outside_of_marks(README)
    for name, command in COMMANDS.items():
        assert re.search(rf"\b{name}\b", headings), f"{name} has no part of README.md"
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        assert [option for option in sorted(options) if not re.search(rf"{option}\b", text)] == [], name


def test_what_does_not_exist_is_not_promised():
    for path in READMES:
        for name in ("verify", "plan", "compare", "effects", "types", "inspect", "crash-points"):
            assert name in COMMANDS or f"durabench {name}" not in path.read_text(), f"{path}: {name}"


# --- names


def test_faults_are_all_there_with_what_they_destroy():
    assert sorted(first_column(described("What each fault destroys"))) == sorted(fault.FAULTS)


def test_workloads_are_all_there():
    for name in workload.WORKLOADS:
        assert f"`{name}`" in described("Commands"), name
        assert f"`{name}`" in BENCH, name


def test_backends_and_settings_are_all_there_the_default_first():
    table = described("Commands").partition("| backend | settings")[2].partition("\n\n")[0]
    said = {}
    for line in table.splitlines()[2:]:
        name, settings = line.split("|")[1:3]
        said[name.strip()] = [word.split()[0] for word in settings.split(", ")]
    assert said == {name: [setting.name for setting in registry.load(name).settings] for name in registry.names()}


def test_verdicts_tell_all_there_are():
    from durabench.checker import WORST_FIRST

    rows = first_column(described("How to read a cell"))
    assert rows[: len(WORST_FIRST)] == list(WORST_FIRST)


def test_variables_of_the_environment_are_all_there():
    code = [
        path
        for room in ("bench/durabench", "backends/durabench_backends", "vm/durabench_model", "vm/durabench_vm")
        for path in ROOT.glob(f"{room}/**/*.py")
    ]
    read = {
        name
        for path in [*code, ROOT / "bench" / "__main__.py"]
        for name in re.findall(r"DURABENCH_[A-Z_]+", path.read_text())
    }
    assert len(read) >= 8
    assert [name for name in sorted(read) if f"`{name}`" not in README] == []


# --- files


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (path.parent / target.partition("#")[0]).exists(), target


def test_every_room_has_its_readme_and_is_named():
    for room in ("bench", "backends", "vm", "results", "notebooks"):
        assert (ROOT / room / "README.md").exists(), room
        assert f"]({room}/README.md)" in described("Where things are"), room


def in_reading_order():
    """The modules of bench/durabench as bench/README.md lists them."""
    table = BENCH.partition("## The files, in reading order")[2].partition("\n\n##")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)(?:\.py|/)`", row)]


def test_every_module_is_in_the_tour():
    made = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(in_reading_order()) - {"profiles"} == made - {"__init__"}
    for path in (PACKAGE / "report").glob("[!_]*.py"):
        assert f"`{path.name}`" in BENCH, path.name


def test_the_tour_goes_from_what_is_used_to_what_uses_it():
    order = in_reading_order()
    for at, name in enumerate(order):
        path = PACKAGE / f"{name}.py"
        if path.exists() and not name.startswith("__"):
            assert used_by(path) <= set(order[:at]), name


def used_by(path):
    """The modules of durabench that a module imports when it runs; what is imported for types only does not count."""
    tree = ast.parse(path.read_text())
    types = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    tree.body = [node for node in tree.body if node not in types]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "durabench":
            names = (node.module or "").split(".")[1:2] or [alias.name for alias in node.names]
            found |= set(names)
    return found - {"__version__"}


def test_the_profile_that_is_shown_loads_and_has_every_key():
    text = next(block for block in re.findall(r"```toml\n(.+?)```", BENCH, re.DOTALL) if "[controls]" in block)
    shown_profile = Profile.model_validate(tomllib.loads(text))
    for model in (Profile, Power):
        for key, what in model.model_fields.items():
            assert re.search(rf"\b{key}\b", text), key
            given = getattr(shown_profile if model is Profile else shown_profile.power, key)
            if not what.is_required() and what.default is not None:
                assert given == what.default, f"{key}: shown as if {given} were the default"


def test_the_changelog_has_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_one_table_of_results_stands_between_the_marks():
    before, _, rest = README.partition(BEGIN)
    block, _, after = rest.partition(END)
    assert (README.count(BEGIN), README.count(END)) == (1, 1)
    assert before.rfind("\n## ") == before.index("\n## What survives, and what it costs")
    assert "| setting | tier |" in block
    assert "floor: a flush" in block
    assert re.search(r"^- run \S+: [\d,]+ trials", block, re.MULTILINE)
    assert "## Two commands" in after


# --- known findings


def test_known_findings_are_found_in_a_checkout_and_are_not_in_a_wheel(tmp_path):
    assert expectations.OWN == ROOT / "bench" / "expected.toml"
    assert expectations.OWN.exists()
    site = tmp_path / "site"
    for package in (durabench, durabench_backends):  # laid out as a wheel is
        source = Path(package.__file__).parent
        shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import durabench.report.expectations as e; print(e.OWN); print(e.load_expectations())"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[1] == "[]"
    assert not Path(done.stdout.splitlines()[0]).exists()


def test_known_findings_name_what_exists():
    for one in expectations.load_expectations():
        backend, _, setting = one.setting.partition(":")
        registry.setting_of(registry.load(backend), backend, setting)
        fault.load(one.fault)
        assert one.reason


# --- what must not be in it

MACHINE = re.compile(r"(?<![\w.~])/(?:home|root|Users|work)/[\w.-]+|/tmp/[a-z]+/[a-z]+/")
REGISTRY = re.compile(
    r"https?://[\w.:-]*(?:pypi|pythonhosted|artifactory|nexus|devpi)|--(?:extra-)?index" r"-url[ =]\w", re.IGNORECASE
)


def test_no_path_of_a_machine_and_no_registry_in_any_file():
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, "ls-files", "-z"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    found = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if not name or not path.is_file() or path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # not text
        found += [f"{name}: {match[0]}" for pattern in (MACHINE, REGISTRY) for match in pattern.finditer(text)]
    assert found == []

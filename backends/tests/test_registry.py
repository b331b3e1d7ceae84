"""Names lead to backends: ours, those of other packages, those named by class; the README's backend is one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from durabench import service
from durabench_backends import conformance, locate, registry
from durabench_backends.contract import Backend

README = Path(__file__).parents[1] / "README.md"


def test_every_registered_backend_names_its_settings_and_their_sources():
    for name in registry.BACKENDS:
        cls = registry.load(name)
        names = [setting.name for setting in cls.settings]
        assert bool(names) != registry.BACKENDS[name].by_url_only
        assert len(set(names)) == len(names)
        for setting in cls.settings:
            assert setting.promise.source
            assert registry.setting_of(cls, name, setting.name) is setting


def test_naming_backends_imports_none_of_them():
    code = "import sys; from durabench_backends import registry; registry.names(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "durabench_backends.registry" in loaded
    assert not loaded & {"sqlite3", "psycopg", "redis", "boto3", "botocore", "durabench", "durabench_backends.files"}


@pytest.mark.parametrize("name", registry.BACKENDS)
def test_loading_a_backend_imports_no_client_library(name):
    code = (
        "import sys; from durabench_backends import registry; registry.load(sys.argv[1]).settings; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, name], check=True, capture_output=True, text=True, timeout=60)
    assert not set(done.stdout.split()) & {"psycopg", "redis", "boto3", "botocore", "durabench"}


@pytest.mark.parametrize(
    "name, offered",
    [("postgress", "did you mean postgres?"), ("s3-swfit", "s3-swift"), ("zzz", "known: memory, files, sqlite")],
)
def test_an_unknown_backend_offers_the_nearest(name, offered):
    with pytest.raises(registry.UnknownBackend, match="unknown backend") as caught:
        registry.load(name)
    assert offered in str(caught.value)


def test_an_unknown_setting_offers_the_nearest():
    with pytest.raises(registry.UnknownBackend, match="did you mean fsync-dir"):
        registry.setting_of(registry.load("files"), "files", "fsyncdir")


@pytest.mark.parametrize("name", ["no_such_package:Class", "durabench_backends.files:NoSuchClass"])
def test_a_class_that_is_not_there_is_an_unknown_backend(name):
    with pytest.raises(registry.UnknownBackend, match=re.escape(name)):
        registry.load(name)


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(registry.BACKENDS, "toy", registry.Line("no_such_client:Toy", "toy"))
    with pytest.raises(locate.MissingExtra, match=r"toy needs no_such_client: pip install 'durabench\[toy\]'"):
        registry.load("toy")


@pytest.mark.parametrize(
    "url, name",
    [
        ("file:///dir?write=rename", "files"),
        ("sqlite:////abs.db", "sqlite"),
        ("postgresql:///test", "postgres"),
        ("rediss://host", "redis"),
        ("valkey://host", "valkey"),
        ("s3://bucket/prefix", "s3"),
    ],
)
def test_a_url_leads_to_its_backend(url, name):
    assert registry.name_for_url(url) == name


def test_an_unknown_scheme_offers_the_nearest():
    with pytest.raises(registry.UnknownBackend, match="did you mean redis or rediss"):
        registry.name_for_url("rediz://host")


# The README's backend.


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The package that the README's first code block makes, importable here and in processes started from here."""
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code
    package = tmp_path / "site" / "readme_example"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "dumb.py").write_text(code[1])
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    yield package.parent
    for module in [name for name in sys.modules if name.startswith("readme_example")]:
        del sys.modules[module]


@pytest.fixture
def entry_point(example):
    """The same package, installed with the entry point that the README shows."""
    lines = re.search(r"```toml\n\[project.entry-points.\"(.*?)\"\]\ndumb = \"(.*?)\"\n```", README.read_text())
    assert lines
    installed = example / "readme_example-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: readme-example\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{lines[1]}]\ndumb = {lines[2]}\ndumb-url = {lines[2]}\n")


def test_the_backend_of_the_readme_passes_the_suite_when_named_by_class(example, tmp_path):
    name = "readme_example.dumb:Dumb"
    assert isinstance(registry.load(name)(registry.load(name).settings[0], tmp_path, lambda _: 0), Backend)
    with service.running(name, "shipped", tmp_path / "machine") as running:
        results = conformance.run(running)
    assert [(result.check.id, result.reason) for result in results if result.outcome == "failed"] == []
    assert sum(result.outcome == "passed" for result in results) >= 22


def test_the_backend_of_the_readme_is_found_as_an_entry_point(entry_point, tmp_path):
    assert "dumb" in registry.names()
    assert registry.name_for_url("dumb-url://somewhere") == "dumb-url"
    assert registry.load("dumb") is registry.load("dumb-url")
    with service.running("dumb", "shipped", tmp_path / "machine") as running:
        running.put_elsewhere("metadata", "key", b"value")
        assert running.elsewhere("metadata", "key") == b"value"


def test_the_line_of_the_readme_registers_it(example, monkeypatch):
    line = re.search(r"```python\n    \"dumb\": Line\(\"durabench_backends\.dumb:Dumb\"\),\n```", README.read_text())
    assert line
    monkeypatch.setitem(registry.BACKENDS, "dumb", registry.Line("readme_example.dumb:Dumb"))
    assert registry.load("dumb").settings[0].name == "shipped"
    assert "dumb" in registry.names()


def test_the_readme_lists_the_checks():
    table = re.search(r"<!-- checks -->\n(.*?)<!-- /checks -->", README.read_text(), re.DOTALL)
    assert table
    rows = [tuple(cell.strip(" `") for cell in line.split("|")[1:-1]) for line in table[1].splitlines()[2:]]
    assert rows == [(check.id, check.description, check.needs) for check in conformance.CHECKS]

"""The notebooks run as they are against the committed results, and say again what is committed with them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
READS = {"durability": ("kills", "power"), "thresholds": ("plan",)}
"""Which folders of results/ a notebook reads."""


def said(notebook):
    """The text of every output, cell by cell."""
    return [
        "".join(output.get("text", "") for output in cell.get("outputs", ()))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_every_notebook_is_known_with_what_it_reads():
    assert [path.stem for path in NOTEBOOKS] == sorted(READS)
    for path in NOTEBOOKS:
        for name in READS[path.stem]:
            assert f"results/{name}" in path.read_text(), f"{path.name} does not say that it reads {name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_again_what_is_committed_with_it(path, tmp_path, monkeypatch):
    if not (ROOT / "results" / READS[path.stem][0]).exists():
        return  # test_committed holds that there are results
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    (tmp_path / "results").symlink_to(ROOT / "results")
    copied = shutil.copy(path, tmp_path)
    there = tmp_path / "notebooks"
    there.mkdir()
    committed = nbformat.read(copied, 4)
    again = nbformat.read(copied, 4)
    place = {"metadata": {"path": str(there)}}
    NotebookClient(again, timeout=120, kernel_name="python3", resources=place).execute()
    assert said(again) == said(committed), "run it again: notebooks/README.md says how"
    figures = re.findall(r"\]\((figures/\S+?)\)", path.read_text())
    assert len(figures) >= 3
    for name in figures:
        assert (there / name).read_bytes() == (path.parent / name).read_bytes(), name

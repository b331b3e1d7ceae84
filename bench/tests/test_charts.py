"""Six charts: what they say, that nothing in them lies on anything else, and that they never differ by themselves."""

from __future__ import annotations

import hashlib
import os
import runpy
import subprocess
import sys
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from durabench import report
from durabench.report import charts
from durabench.report.charts import labels, style, tail, tradeoff
from durabench.results import Folder

EVERYTHING = runpy.run_path(str(Path(__file__).parent / "all_settings.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return EVERYTHING["record"](tmp_path_factory.mktemp("charts") / "run")


@pytest.fixture(scope="module")
def material(folder):
    return charts.gather(report.document([folder]), [folder])


@pytest.fixture(scope="module")
def drawn(material):
    return {chart.name: chart for chart in charts.charts(material)}


NAMES = ("survival", "loss-rate", "loss-window", "latency-by-size", "tail", "trade-off")


def texts(chart):
    return [text.get_text() for text in labels.texts(chart.figure)]


def test_there_are_six_and_each_says_what_it_shows_and_how_that_was_measured(drawn):
    assert tuple(drawn) == NAMES
    for chart in drawn.values():
        assert not chart.empty
        assert chart.sentence.endswith(".")
        assert len(chart.measured) > 60


@pytest.mark.parametrize("name", NAMES)
def test_no_two_labels_lie_on_each_other_and_none_is_cut_off_with_all_settings(drawn, name):
    assert len(texts(drawn[name])) > 40, "all settings are named"
    assert labels.defects(drawn[name].figure) == labels.Defects((), ())


def test_nor_with_several_hosts_and_with_the_long_name_of_somebodys_class(tmp_path):
    long = ("somebody.package.stores:DurableStore", "everything-on")
    EVERYTHING["PROMISES"][long[0]] = {long[1]: EVERYTHING["T3"]}
    few = [("s3-seaweedfs", "versioned-fsync"), ("postgres", "off"), long]
    folders = [
        EVERYTHING["record"](
            tmp_path / host, 2, settings=few, machine={**EVERYTHING["MACHINE"], "id": host}, plan=False
        )
        for host in ("aaaaaaaa", "bbbbbbbb")
    ]
    del EVERYTHING["PROMISES"][long[0]]
    for chart in charts.charts(charts.gather(report.document(folders), folders)):
        assert labels.defects(chart.figure) == labels.Defects((), ()), chart.name


def test_labels_on_each_other_would_be_seen():
    with style.styled():
        made = style.figure(2, 1)
        made.text(0.5, 0.5, "one")
        made.text(0.52, 0.52, "other")
        made.text(0.98, 0.2, "cut off")
    assert labels.defects(made) == labels.Defects((("one", "other"),), ("cut off",))


ELSEWHERE = """
import hashlib, sys
from pathlib import Path
from durabench import report
from durabench.report.charts import draw
from durabench.results import Folder
folder = Folder.open(Path(sys.argv[1]))
made = draw(report.document([folder]), [folder], Path(sys.argv[2]))
print([hashlib.sha256(path.read_bytes()).hexdigest() for path in made])
"""


def test_the_same_results_give_the_same_bytes_in_another_process(tmp_path):
    """Another hash seed, another process, somebody's own matplotlib settings."""
    folder = EVERYTHING["record"](tmp_path / "run", trials=2, settings=EVERYTHING["SETTINGS"][9:12])
    config = tmp_path / "matplotlibrc"
    config.write_text("font.size: 30\nlines.linewidth: 9\n")
    env = {**os.environ, "PYTHONHASHSEED": "7", "MATPLOTLIBRC": str(config)}
    argv = [sys.executable, "-c", ELSEWHERE, str(folder.path), str(tmp_path / "theirs")]
    theirs = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=120)
    made = charts.draw(report.document([folder]), [folder], tmp_path / "ours")
    assert [path.name for path in made] == [f"{name}.{form}" for name in NAMES for form in ("png", "svg")]
    assert theirs.stdout.strip() == str([hashlib.sha256(path.read_bytes()).hexdigest() for path in made])


def test_a_backend_has_one_colour_and_marker_whatever_else_is_there():
    known = charts.material.in_order(EVERYTHING["PROMISES"])
    everywhere = style.looks(known)
    assert len(set(everywhere.values())) == len(known) == 9
    assert len({look.colour for look in everywhere.values()}) == 9
    assert len({look.marker for look in everywhere.values()}) == 9, "they can be told apart without any colour"
    few = style.looks(["valkey", "files"])
    assert few == {name: everywhere[name] for name in ("files", "valkey")}
    plugged = style.looks(["files", "another"])
    assert plugged["files"] == everywhere["files"]
    assert plugged["another"] not in everywhere.values()


def test_the_matrix_says_everything_without_its_colours(drawn):
    said = texts(drawn["survival"])
    assert "✓ 0/6 ≤ 46 %" in said
    assert any(text.startswith("✕") and "gaps" in text for text in said)
    assert any(text.startswith("○") and "lost" in text for text in said)
    assert "· not rated" in said
    sentence = drawn["survival"].sentence
    assert sentence.startswith("16 of 33 settings kept")
    assert sentence.endswith("valkey:waitaof broke it.")


def test_a_zero_is_an_open_marker_with_its_bound(drawn, material):
    seen = {"open": 0, "filled": 0}
    for axes in drawn["loss-rate"].figure.axes:
        for line in axes.lines:
            filled = line.get_markerfacecolor() != style.PAPER
            assert all((rate > 0) == filled for rate in line.get_xdata())
            seen["filled" if filled else "open"] += len(line.get_xdata())
    counted = [cell for cell in material.cells if cell["trials_counted"] and cell["fault"] != "none"]
    assert sum(seen.values()) == len(counted)
    assert min(seen.values()) > 10
    assert "0/6  ≤ 46 %" in texts(drawn["loss-rate"])


def test_a_documented_bound_stands_dashed_across_its_backends_losses(drawn):
    panels = {axes.get_title(loc="left"): axes for axes in drawn["loss-window"].figure.axes}
    bounds = {
        name: {line.get_xdata()[0] for line in axes.lines if line.is_dashed() and line.get_color() == style.INK}
        for name, axes in panels.items()
    }
    assert bounds["postgres"] == {0.6}
    assert bounds["valkey"] == {2.0}
    assert bounds["files"] == set()
    assert "off: ≤ 0.6 s" in texts(drawn["loss-window"])
    assert "longer than is promised: valkey:waitaof" in drawn["loss-window"].sentence


def test_loss_windows_of_one_gap_are_one_value_the_longest(tmp_path):
    gathering = charts.Gathering()
    common = {"host": "h", "backend": "b", "setting": "s", "namespace": "data", "fault": "cut-power", "lane": "guest"}
    for trial, (gap, window, verdict, lost) in enumerate(
        [
            (1, 0.2, "broken", 1),
            (1, 0.7, "broken", 9),
            (2, 0.1, "broken", 1),
            (3, 9, "unknown", 1),
            (4, None, "kept", 0),
        ]
    ):
        row = {"trial": trial, "gap": gap, "recording": "r", "loss_window_s": window, "verdict": verdict, "lost": lost}
        gathering.row({**common, **row, "acked": 9, "destroyed": "drive"}, Folder(tmp_path))
    made = gathering.material({"cells": []})
    assert made.windows_s == {("h", "b", "s", "data", "cut-power"): [0.1, 0.7]}
    assert made.all_lost == {("h", "b", "s", "data", "cut-power"): 1}


def test_a_quantile_is_drawn_only_from_enough_samples():
    assert [len(tail.quantiles([5] * count)) for count in (0, 1, 72, 368, 3688)] == [0, 1, 3, 4, 5]


def test_the_tail_reaches_as_far_as_the_samples_do(drawn):
    metadata, data = drawn["tail"].figure.axes
    assert [text.get_text() for text in metadata.get_xticklabels()] == ["p50", "p90", "p95", "p99"]
    assert [text.get_text() for text in data.get_xticklabels()] == ["p50", "p90", "p95"]


def test_crossings_are_shaded_and_told_in_words(drawn):
    said = [text for text in texts(drawn["latency-by-size"]) if ": from here " in text]
    assert said
    for text in said:
        assert text.split(": from here ")[1] in drawn["latency-by-size"].sentence
    assert "floor (one flush)" in texts(drawn["latency-by-size"])


def test_the_frontier_is_what_nothing_beats():
    spots = [
        tradeoff.Spot("slow and safe", "b", 9, 0, ""),
        tradeoff.Spot("slower and safe", "b", 10, 0, ""),
        tradeoff.Spot("fast and loses", "b", 1, 2.0, ""),
        tradeoff.Spot("fast and loses more", "b", 1, 3.0, ""),
        tradeoff.Spot("fastest, loses all", "b", 0.1, inf, ""),
    ]
    named = [spot.label for spot in tradeoff.frontier(spots) if spot.on_frontier]
    assert named == ["slow and safe", "fast and loses"]


def test_what_nobody_timed_or_struck_is_no_point_of_the_trade_off(drawn):
    said = " ".join(texts(drawn["trade-off"]))
    assert "s3-swift" not in said, "no power cut was made"
    assert "sqlite:wal-full" in said
    assert "cut-power" in said


def test_a_chart_without_data_says_so_instead_of_showing_an_empty_axis(tmp_path):
    folder = Folder.create_at(tmp_path / "empty")
    folder.begin({"profile": "quick", "seed": 1, "machine": {"id": "0a1b2c3d"}, "cells": []})
    folder.close()
    document = report.document([Folder.open(folder.path)])
    for chart in charts.charts(charts.gather(document, [folder])):
        assert chart.empty
        assert chart.figure.axes == []
        assert chart.sentence.startswith("There is nothing to draw: ")
        assert any("Nothing to draw" in text for text in texts(chart))


def test_a_plan_that_cannot_be_read_is_not_drawn(tmp_path):
    folder = EVERYTHING["record"](tmp_path / "run", trials=1, plan=False)
    (folder.path / "plan.json").write_text('{"sweep": [')
    made = charts.gather(report.document([folder]), [folder])
    assert made.plans == ()


@pytest.mark.parametrize("wanted", [[], [3.0], [1, 1, 1], [0, 0, 9, 9, 9], [5, 1, 3], list(range(40)), [0.5] * 40])
def test_labels_are_spread_as_little_as_need_be(wanted):
    found = labels.spread(wanted, 1.0, 0.0, 50.0)
    ordered = [value for _, value in sorted(zip(wanted, found, strict=True))]
    assert all(later - earlier > 1 - 1e-9 for earlier, later in pairwise(ordered))
    assert all(0 <= value <= 50 for value in found)
    if wanted in ([3.0], list(range(40))):
        assert found == pytest.approx(wanted), "nothing moves without need"


def test_sizes_are_told_to_two_digits():
    from durabench.report.charts.latency_by_size import about

    assert [about(size) for size in (300, 1024, 1536, 394_000, 2_000_000)] == [
        "300 B",
        "1 KiB",
        "1.5 KiB",
        "385 KiB",
        "1.9 MiB",
    ]

"""The form *My constraints*: its answers in a real browser, against the same said in Python, on every combination."""

from __future__ import annotations

import itertools

import pytest

from durabench import report
from durabench.report import NOT_POSSIBLE, Cell, html
from durabench.report.charts import Material
from durabench.report.html import constraints, page
from durabench.results import Folder

DOMAINS = {"client": "kill-client", "server": "kill-server", "machine": "reset-machine", "drive": "cut-power"}
VERDICTS = ("broken", "unknown", "no-promise", "within", "kept", "not rated", "not run", NOT_POSSIBLE, None)
"""None: no such cell at all."""
HARDER = ("broken", "unknown", "within", "kept", None)
T3 = dict.fromkeys(DOMAINS, 0.0)
PROMISES = [T3, {**T3, "server": 2.0, "machine": 2.0, "drive": 2.0}, {"client": 0.0, "server": 0.0}, {}, None]
"""None: not recorded."""
PUTS_MS = [(0.1, 5.0), (0.2, 50.0), (0.3, None), (None, None)]
"""Median and p99; None: not measured."""
NEEDS = list(itertools.product(DOMAINS, ("0", "0.5", "2"), ("", "10")))
HOST = "0a1b2c3d"


def cells_of(setting, seen, put=(None, None), namespaces=("metadata",), backend="toy", host=HOST):
    """The cells of one setting; ``seen`` is by domain."""
    found = []
    for namespace in namespaces:
        common = {"tier": "T3", "namespace": namespace, "workload": "agent", "lane": "here", "host": host}
        sized = {"trials": 9, "acked": 9, "payload_bytes": 9 * 2048}
        peace = {"destroyed": "nothing", "verdict": "kept", "put_p50_ms": put[0], "put_p99_ms": put[1], **sized}
        found.append(Cell(backend, setting, fault="none", **common, **peace))
        for domain, fault in DOMAINS.items():
            if seen.get(domain) is None:
                continue
            judged = seen[domain] in VERDICTS[:5]
            counts = {"trials": 9, "loss_rate_high": 0.3} if judged else {}
            if seen[domain] == "within":
                counts |= {"loss_window_max_s": 1.0}
            found.append(
                Cell(backend, setting, fault=fault, destroyed=domain, verdict=seen[domain], **common, **counts)
            )
    return found


def rendered(path, cells, promises, monkeypatch):
    """The page of made-up cells, without its charts, which the form does not look at."""
    folder = Folder.create_at(path / "run")
    recorded = {label: {"may_lose_s": promise} for label, promise in promises.items() if promise is not None}
    folder.begin({"machine": {"id": HOST}, "cells": [], "seed": 1, "promises": recorded})
    folder.finish(0)
    document = {**report.document([folder]), "cells": [cell.as_json() for cell in cells]}
    monkeypatch.setattr(page.charts, "charts", lambda *_, **__: [])
    made = path / "report.html"
    html.write(document, [folder], made)
    return made


def good(verdict):
    return verdict in ("kept", "within")


def oracle(seen, promise, put, need):  # noqa: PLR0911 - one return per line of the rule
    """What a setting is to a need, said a second time and slowly."""
    survive, window, p99 = need[0], float(need[1]), need[2]
    names = list(DOMAINS)
    asked, harder = names[: names.index(survive) + 1], names[names.index(survive) + 1 :]
    verdicts = [seen.get(domain) for domain in asked]
    if "broken" in verdicts or "no-promise" in verdicts:
        return "no"
    if promise is not None and any(promise.get(domain, float("inf")) > window for domain in asked):
        return "no"
    if "within" in verdicts and window < 1.0:
        return "no"
    if promise is None or "unknown" in verdicts:
        return "cannot tell"
    own = seen.get(survive)
    if own == NOT_POSSIBLE and survive == "server":
        own = seen.get("client")
    tried = [seen.get(domain) for domain in harder if seen.get(domain) not in (None, "not run", NOT_POSSIBLE)]
    by_harder = own in (None, "not run", NOT_POSSIBLE) and tried[:1] == ["kept"]
    if not good(own) and not by_harder:
        return "cannot tell"
    if p99 and put[1] is None:
        return "cannot tell"
    return "no" if p99 and put[1] > float(p99) else "yes"


ANSWERS = """
const form = document.getElementById("form");
return arguments[0].map(([survive, window_, p99]) => {
  form.elements.survive.value = survive;
  form.elements.window.value = window_;
  form.elements.p99.value = p99;
  form.dispatchEvent(new Event("change"));
  const rows = [...document.querySelectorAll("tr[data-s]")];
  const said = rows.map((row) => [row.title.split(":")[0], row.hidden]);
  return [said, document.getElementById("answer").textContent];
});
"""


def test_the_page_says_what_python_says_on_every_combination(browser, tmp_path, monkeypatch):
    """Every verdict of processes' deaths with those of the machine's, of every promise and latency, to every need."""
    made = {}
    for number, verdicts in enumerate(itertools.product(VERDICTS, VERDICTS, HARDER, HARDER)):
        seen = dict(zip(DOMAINS, verdicts, strict=True))
        made[f"s{number}"] = (seen, PROMISES[number % 5], PUTS_MS[number // 5 % 4])
    cells = [cell for name, (seen, _, put) in made.items() for cell in cells_of(name, seen, put)]
    promises = {f"toy:{name}": promise for name, (_, promise, _) in made.items()}
    browser.get(rendered(tmp_path, cells, promises, monkeypatch).as_uri())
    answers = browser.execute_script(ANSWERS, NEEDS)
    disagree, compared, yes = [], 0, 0
    for need, (said, sentence) in zip(NEEDS, answers, strict=True):
        words = [oracle(*setting, need) for setting in made.values()]
        assert len(said) == len(words)
        disagree += [
            (need, setting, word, by_page)
            for setting, word, (by_page, hidden) in zip(made.values(), words, said, strict=True)
            if (word, word == "no") != (by_page, hidden)
        ]
        compared += len(words)
        count = words.count("yes")
        yes += count
        assert sentence.startswith(f"{count} of {len(made)} settings do: " if count else "None of "), need
        assert f" {words.count('no')} do not." in sentence
        assert ("A loss rate of up to 30 % is still possible." in sentence) == (count > 0)
    assert disagree == []
    assert compared == 9 * 9 * 5 * 5 * len(NEEDS) > 1080
    assert yes > 1000, "and not because nothing ever does"


CUT = {"drive": "within"}
"""A host on which only the power was cut, and something lost inside the window."""


@pytest.mark.parametrize(
    "seen,promise,need,word",
    [
        (CUT, PROMISES[1], ("client", "0", ""), "cannot tell"),
        (CUT, PROMISES[1], ("client", "2", ""), "cannot tell"),
        (CUT, PROMISES[1], ("drive", "2", ""), "yes"),
        ({"drive": "kept"}, T3, ("client", "0", ""), "yes"),
        ({"drive": "broken"}, T3, ("client", "0", ""), "cannot tell"),
        ({"server": "broken", "drive": "kept"}, T3, ("client", "0", ""), "cannot tell"),
        ({}, T3, ("client", "0", ""), "cannot tell"),
        ({"client": "kept", "server": NOT_POSSIBLE}, T3, ("server", "0", ""), "yes"),
        ({"server": NOT_POSSIBLE}, T3, ("server", "0", ""), "cannot tell"),
        ({"client": "kept", "drive": NOT_POSSIBLE}, T3, ("drive", "0", ""), "cannot tell"),
        ({"client": "unknown", "drive": "kept"}, T3, ("drive", "0", ""), "cannot tell"),
        ({"client": "kept"}, None, ("client", "0", ""), "cannot tell"),
    ],
)
def test_nothing_that_was_not_shown_is_a_yes(browser, tmp_path, monkeypatch, seen, promise, need, word):
    every = [*cells_of("one", seen), *cells_of("other", dict.fromkeys(DOMAINS, "kept"))]
    made = rendered(tmp_path, every, {"toy:one": promise, "toy:other": T3}, monkeypatch)
    browser.get(made.as_uri())
    ((said, _),) = browser.execute_script(ANSWERS, [need])
    assert said[0][0] == word == oracle(seen, promise, (None, None), need)


def test_a_part_that_was_not_tried_is_no_evidence():
    both = cells_of("one", {"client": "kept"}, namespaces=("metadata", "data"))
    metadata = [cell for cell in cells_of("one", {"drive": "kept"}) if cell.fault == "cut-power"]
    made = Material({"cells": [cell.as_json() for cell in (*both, *metadata)]}, promises={"toy:one": T3})
    (setting,) = constraints.settings(made)
    assert setting["seen"]["client"]["verdict"] == "kept"
    assert (setting["seen"]["drive"]["verdict"], setting["seen"]["drive"]["why"]) == (
        "not run",
        "not tried for its data",
    )
    assert setting["seen"]["machine"]["verdict"] is None


def test_of_two_promises_under_one_label_the_weaker_counts(tmp_path):
    gathering = page.charts.Gathering()
    for number, may in enumerate((PROMISES[1], {**T3, "client": 1.0}, {"client": 0.0, "server": 0.0, "machine": 5.0})):
        folder = Folder.create_at(tmp_path / str(number))
        folder.begin({"machine": {"id": HOST}, "cells": [], "promises": {"toy:live": {"may_lose_s": may}}})
        gathering.folder(folder)
        folder.close()
    assert gathering.material({"cells": []}).promises["toy:live"] == {"client": 1.0, "server": 2.0, "machine": 5.0}

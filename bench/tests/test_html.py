"""The page of a report in a real browser: it loads nothing, answers what it is asked, and can be read by all."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import runpy
import shutil
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from durabench import cli, report
from durabench.report import html
from durabench.report.html import losses, raw
from durabench.results import Folder

EVERYTHING = runpy.run_path(str(Path(__file__).parent / "all_settings.py"))
GOLDEN = Path(__file__).parent / "golden"
RECORD, MACHINE = EVERYTHING["record"], EVERYTHING["MACHINE"]
HOSTILE = "</script><img src=x onerror=document.title='owned'> & \u2028 {{ 7 * 7 }}"
LIMIT_BYTES = 1_500_000


def page_of(path, folders, **more):
    html.write(report.document(folders, **more), folders, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return RECORD(tmp_path_factory.mktemp("html") / "run")


@pytest.fixture(scope="module")
def page(folder):
    return page_of(folder.path.parent / "report.html", [folder])


@pytest.fixture
def opened(browser, page):
    """The page, freshly opened, in light colours."""
    return fresh(browser, page)


def fresh(browser, page):
    scheme(browser, "light")
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    return browser


def scheme(browser, which):
    features = [{"name": "prefers-color-scheme", "value": which}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def answer(browser):
    return browser.find_element(By.ID, "answer").text


def shown(browser):
    """Settings whose rows are to be seen."""
    rows = browser.find_elements(By.CSS_SELECTOR, "table.matrix tbody tr:not([hidden]) th")
    return [row.text for row in rows]


def ask(browser, **needs):
    form = browser.find_element(By.ID, "form")
    for name, value in needs.items():
        field = form.find_element(By.NAME, name)
        if field.tag_name == "input":
            field.clear()
        field.send_keys(value)
    form.find_element(By.CSS_SELECTOR, "button[type=submit]").click()


# ------------------------------------------------------------------------------------------------ in a browser


def test_it_opens_from_a_file_without_an_error_and_loads_nothing_else(opened, page):
    assert [entry for entry in opened.get_log("browser") if entry["level"] != "INFO"] == []
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [page.as_uri()]
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_it_answers_in_its_first_two_sentences(opened):
    said = opened.find_element(By.CLASS_NAME, "answer").text
    assert said.startswith("Of 33 settings put through kill-client, kill-server, reset-machine and cut-power, 1 broke")
    assert "valkey:waitaof (cut-power). Pick: " in said


def test_the_form_filters_and_answers(opened):
    everything = shown(opened)
    assert len(everything) == 33
    ask(opened, survive="drive", window="0")
    said, left = answer(opened), shown(opened)
    assert re.match(r"\d of 33 settings do: ", said)
    assert "A loss rate of up to 46 % is still possible." in said
    assert "files:fsync-dir (median put" in said
    assert "2 cannot be told (cut-power: not run, budget)." in said, "s3-swift promises it, and no power was cut"
    assert {"files:fsync-dir", "sqlite:wal-full", "s3-swift:versioned"} <= set(left)
    assert not {"valkey:waitaof", "postgres:off", "files:rename", "memory:dict"} & set(left)
    ask(opened, window="2")
    assert {"postgres:off", "redis:aof-everysec"} <= set(shown(opened))
    ask(opened, window="0", p99="0.0001")
    assert answer(opened).startswith("None of 33 settings is known to do. ")
    opened.find_element(By.CSS_SELECTOR, "button[type=reset]").click()
    assert shown(opened) == everything
    ask(opened, survive="client", window="0", p99="")
    assert re.match(r"3\d of 33 settings do: ", answer(opened)), "an embedded store is struck as its writer"
    assert "memory:dict" not in shown(opened)


def test_a_p99_that_nobody_knows_is_not_held_to_be_low(opened):
    ask(opened, survive="drive", window="0", size="data, 1 MiB", p99="1000000")
    assert "None of 33 settings is known to do." in answer(opened)
    assert "no p99 at this size (it takes 368 puts)" in answer(opened)


def test_sizes_of_a_plan_can_be_asked_for(opened):
    options = [option.text for option in opened.find_elements(By.CSS_SELECTOR, "select[name=size] option")]
    assert options[:2] == ["metadata, 2 KiB", "data, 1 MiB"]
    assert "any part, 64 KiB (plan)" in options
    ask(opened, survive="drive", window="0", size="any part, 64 KiB (plan)", p99="1000000")
    assert re.match(r"\d of 33 settings do: ", answer(opened))


def test_it_works_by_keyboard_alone(opened):
    def focused():
        return opened.switch_to.active_element

    def tab_to(wanted):
        for _ in range(60):
            opened.switch_to.active_element.send_keys(Keys.TAB)
            if wanted(focused()):
                return focused()
        pytest.fail("it cannot be reached by the keyboard")

    opened.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert focused().text == "Skip to the matrix"
    assert focused().rect["x"] >= 0, "the link is seen once it has the focus"
    tab_to(lambda element: element.get_attribute("data-copy") == "markdown").send_keys(Keys.ENTER)
    assert opened.find_element(By.ID, "done").text == "Copied."
    window = tab_to(lambda element: element.get_attribute("name") == "window")
    assert window.value_of_css_property("outline-style") == "solid", "where one is, is seen"
    window.send_keys(Keys.ENTER)
    assert " of 33 settings do: " in answer(opened)
    assert opened.execute_script("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length") == 0


def test_every_field_has_a_label_and_headings_have_an_order(opened):
    unlabelled = "return [...document.querySelectorAll('input,select')].filter(e => !e.labels.length).length"
    assert opened.execute_script(unlabelled) == 0
    levels = opened.execute_script("return [...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    drawings = opened.find_elements(By.CSS_SELECTOR, "svg[role=img]")
    assert len(drawings) == 5, "the matrix is a table"
    assert all(len(drawing.accessible_name) > 60 for drawing in drawings)
    ids = opened.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert not {one for one in ids if ids.count(one) > 1 and not re.match(r"[mp][0-9a-f]{10}", one)}


CONTRAST = """
const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(channel);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const found = [];
for (const element of document.querySelectorAll("p, li, td, th, button, summary, label, a, small, svg text")) {
  const style = getComputedStyle(element), colour = element instanceof SVGElement ? style.fill : style.color;
  const seen = ratio(colour, ground(element));
  if (seen < arguments[0]) found.push([element.textContent.slice(0, 40), colour, seen]);
}
return found;
"""


@pytest.mark.parametrize("which", ["light", "dark"])
def test_every_text_can_be_read_in_light_and_dark_those_of_charts_too(opened, which):
    scheme(opened, which)
    ground = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (which == "light")
    assert opened.execute_script(CONTRAST, 4.5) == []


OVERLAPS = """
const found = [];
for (const chart of document.querySelectorAll("svg.chart")) {
  const boxes = [...chart.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 2 && high > Math.min(a.height, b.height) / 3) found.push([one, other]);
  }));
}
return found;
"""


def test_no_two_texts_of_a_chart_lie_on_each_other_in_a_browser_either(opened):
    assert opened.execute_script(OVERLAPS) == []


def test_a_command_and_the_markdown_can_be_copied(opened, folder):
    button = opened.find_element(By.CSS_SELECTOR, "#losses ~ details[open] button[data-copy=code]")
    command = button.find_element(By.XPATH, "preceding-sibling::code").text
    assert re.fullmatch(rf"durabench replay {re.escape(str(folder.path))} \d+", command)
    listen = (
        "window.copied = []; document.addEventListener('copy', () => copied.push(String(document.activeElement.value)))"
    )
    opened.execute_script(listen)
    button.click()
    assert button.text == "copied"
    opened.find_element(By.CSS_SELECTOR, "[data-copy=markdown]").click()
    copied, markdown = opened.execute_script("return copied")
    assert copied == command
    assert markdown == report.render(report.document([folder]), "markdown")


def test_the_rows_in_the_page_are_those_of_the_folder(opened, folder):
    opened.execute_script(
        "window.saved = [];URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return '#' }"
    )
    opened.find_element(By.CSS_SELECTOR, "[data-save]").click()
    text = opened.execute_async_script("const done = arguments[0]; setTimeout(() => done(saved[0]), 50)")
    lines = list(csv.DictReader(io.StringIO(text)))
    rows = folder.trials()
    assert len(lines) == len(rows)
    of_page = {(int(line["trial"]), line["namespace"]): line for line in lines}
    for row in rows:
        line = of_page[row["trial"], row["namespace"]]
        assert (line["backend"], line["verdict"], int(line["lost"])) == (row["backend"], row["verdict"], row["lost"])
        assert line["loss_window_s"] == "" if row["loss_window_s"] is None else float(line["loss_window_s"])


def test_on_paper_everything_is_open_and_nothing_is_to_be_pressed(opened):
    made = opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(made["data"]).startswith(b"%PDF")
    closed = "return document.querySelectorAll('details:not([open])').length"
    assert opened.execute_script(closed) == 0
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    for pressed in opened.find_elements(By.CSS_SELECTOR, "button, nav, form"):
        assert not pressed.is_displayed()


def test_what_a_server_says_becomes_no_element(browser, tmp_path):
    device = {**MACHINE["device"], "model": HOSTILE}
    folder = RECORD(
        tmp_path / "run", 1, settings=EVERYTHING["SETTINGS"][23:25], why=HOSTILE, machine={**MACHINE, "device": device}
    )
    fresh(browser, page_of(tmp_path / "report.html", [folder]))
    assert browser.title == "durabench: run"
    assert browser.execute_script("return document.images.length + document.scripts.length") == 2
    assert HOSTILE.split("&", maxsplit=1)[0].strip() in browser.find_element(By.TAG_NAME, "main").text
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


# ------------------------------------------------------------------------------------------------ as a file


def test_a_page_is_small(page):
    assert page.stat().st_size < LIMIT_BYTES


def test_of_a_large_run_losing_rows_are_in_the_page_and_of_the_rest_what_fits(folder):
    rows, every = raw.Rows(), folder.trials()
    times = 50_000 // len(every) + 1
    for time in range(times):
        for row in every:
            rows.row({**row, "seed": row["seed"] + time}, losing=row["verdict"] == "broken")
    compact = rows.compact()
    assert compact["total"] == times * len(every) > 50_000
    assert 5000 < compact["rows"] < compact["total"]
    assert 0.5 * raw.LIMIT_BYTES < len(json.dumps(compact, separators=(",", ":"))) < 1.02 * raw.LIMIT_BYTES
    words, at = compact["columns"]["verdict"].values()
    broken = sum(row["verdict"] == "broken" for row in every)
    assert [words[number] for number in at].count("broken") == times * broken, "none of those is left out"


def test_of_very_many_losing_trials_broken_promises_are_shown_first_and_all_are_counted(folder):
    found, one = losses.Losses(), folder.trials()[0]
    for number in range(4000):
        for setting, verdict in (("one", "no-promise"), ("other", "broken")):
            if verdict == "no-promise" or number < 300:
                row = {**one, "trial": number, "setting": setting, "verdict": verdict, "lost": 3}
                found.trial([row], folder)
    first, second = found.groups(several_hosts=False)
    assert (first.verdict, first.total, len(first.losses)) == ("broken", 300, 300)
    assert (second.total, len(second.losses)) == (4000, losses.SHOWN - 300)


def test_torn_lines_missing_histories_and_unfinished_runs_are_told(tmp_path):
    folder = RECORD(tmp_path / "run", 1, settings=EVERYTHING["SETTINGS"][1:5], done=False)
    shutil.rmtree(folder.path / "histories")
    shutil.rmtree(folder.path / "recordings")
    with (folder.path / "trials.jsonl").open("ab") as file:
        file.write(b'{"trial": 99')
    said = page_of(tmp_path / "report.html", [folder]).read_text()
    assert "run is not finished: what has no trial yet is shown as not run." in said
    assert "1 torn row of run dropped." in said
    assert re.search(r"\d+ trials of run without a history", said)
    assert "its recording was not kept" in said
    assert re.search(r"\d+ losing recordings? of run not kept", said)


def test_a_run_without_a_trial_says_so(browser, tmp_path):
    folder = RECORD(tmp_path / "run", 0, settings=EVERYTHING["SETTINGS"][1:3], plan=False)
    fresh(browser, page_of(tmp_path / "report.html", [folder]))
    assert browser.find_element(By.CLASS_NAME, "answer").text.startswith("No trial was recorded: ")
    text = browser.find_element(By.TAG_NAME, "body").text
    assert text.count("There is nothing to draw: ") == 5
    assert "No trial lost anything that was acknowledged." in text
    ask(browser, survive="client", window="0")
    assert answer(browser).startswith("None of 2 settings is known to do. 0 do not. 2 cannot be told")


def test_several_hosts_stand_side_by_side(tmp_path):
    folders = [
        RECORD(tmp_path / host, 2, settings=EVERYTHING["SETTINGS"][3:5], machine={**MACHINE, "id": host}, plan=False)
        for host in ("aaaaaaaa", "bbbbbbbb")
    ]
    said = page_of(tmp_path / "report.html", folders).read_text()
    assert "Workload agent, host aaaaaaaa" in said
    assert "Workload agent, host bbbbbbbb" in said
    assert '"label":"files:fsync-dir @bbbbbbbb"' in said
    assert "No pick: several machines or disks, each has its own" in said


def test_the_command_writes_the_page_and_the_charts_and_names_what_it_cannot_write(tmp_path, capsys, monkeypatch):
    few = EVERYTHING["SETTINGS"][3:4]
    folder = RECORD(tmp_path / "run", 1, settings=few, plan=False)
    page, drawings = tmp_path / "report.html", tmp_path / "charts"

    def typed(*words):
        monkeypatch.setattr("sys.argv", ["durabench", "report", str(folder.path), *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, capsys.readouterr()

    status, said = typed("--html", page, "--charts", drawings, "--format", "json")
    assert status == 0
    assert json.loads(said.out)["cells"]
    assert page.read_text().startswith("<!doctype html>")
    assert len(list(drawings.glob("*.png"))) == len(list(drawings.glob("*.svg"))) == 6
    for words in (("--html", tmp_path / "no" / "report.html"), ("--charts", page)):
        status, said = typed(*words)
        assert status == 2
        assert re.fullmatch(r"durabench: .* cannot be written: .*; choose another (file|folder)\n", said.err)


def test_the_words_of_the_page_are_as_they_were_when_somebody_looked(tmp_path):
    """To accept a change: look at the file that the failure names, then copy it over the golden one."""
    few = [("files", "rename"), ("postgres", "off"), ("valkey", "waitaof"), ("s3-moto", "versioned")]
    folder = RECORD(tmp_path / "run", 4, settings=few, plan=False)
    shown = page_of(tmp_path / "report.html", [folder]).read_text().replace(str(tmp_path), "results")
    shown = re.sub(r"<(svg|script|style)\b.*?</\1>", "", shown, flags=re.DOTALL)
    lines = [" ".join(unescape(re.sub(r"<[^>]+>", " ", line)).split()) for line in shown.splitlines()]
    words = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "WHEN", "\n".join(filter(None, lines)) + "\n")
    (tmp_path / "page.txt").write_text(words)
    assert words == (GOLDEN / "page.txt").read_text(), f"look at {tmp_path / 'page.txt'}"


def test_secrets_do_not_pass_into_a_page(tmp_path):
    machine = {**MACHINE, "mount_options": "redis://:hunter2@h/0"}
    folder = RECORD(
        tmp_path / "run", 1, settings=EVERYTHING["SETTINGS"][1:2], why="redis://:hunter2@h/0", machine=machine
    )
    assert "hunter2" not in page_of(tmp_path / "report.html", [folder]).read_text()


def test_the_same_results_make_the_same_page(tmp_path):
    folder = RECORD(tmp_path / "run", 1, settings=EVERYTHING["SETTINGS"][3:4])
    document = report.document([folder])
    assert html.render(document, [folder]) == html.render(document, [Folder.open(folder.path)])

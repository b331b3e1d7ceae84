"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("form");
  const answer = document.getElementById("answer");
  const done = document.getElementById("done");
  const rows = [...document.querySelectorAll("tr[data-s]")];
  const greeting = answer && answer.textContent;
  const domains = ["client", "server", "machine", "drive"];
  const good = (verdict) => verdict === "kept" || verdict === "within";
  const ms = (value) => `${Number(value.toPrecision(3))} ms`;

  // What shows that a setting survives domain number `at`: what was seen there; of a server that there is none of (an
  // embedded store's), its writer's death; of what was not tried, the next harder fault that was, if everything was kept.
  function evidence(setting, at) {
    const seen = domains.map((domain) => setting.seen[domain]);
    const untried = (one) => one.verdict === null || one.verdict === "not run" || one.verdict === "–";
    const own = domains[at] === "server" && seen[at].verdict === "–" ? seen[at - 1] : seen[at];
    if (good(own.verdict)) return own;
    const harder = untried(own) ? seen.slice(at + 1).find((one) => !untried(one)) : undefined;
    return harder && harder.verdict === "kept" ? harder : null;
  }

  // What one setting is to somebody's needs: ["yes", null, high], ["no", why] or ["cannot tell", why].
  function hold(setting, need) {
    const at = domains.indexOf(need.survive), last = setting.seen[need.survive];
    const asked = domains.slice(0, at + 1).map((domain) => [domain, setting.seen[domain]]);
    for (const [domain, seen] of asked) {
      const may = setting.promise === null ? 0 : setting.promise[domain];
      if (seen.verdict === "broken") return ["no", `broke its promise under ${seen.fault}`];
      if (may === undefined || seen.verdict === "no-promise") return ["no", `promises nothing when the ${domain} dies`];
      if (may > need.window) return ["no", `may lose ${may} s when the ${domain} dies`];
      if (seen.window_s > need.window) return ["no", `lost ${seen.window_s} s under ${seen.fault}`];
    }
    if (setting.promise === null) return ["cannot tell", "what it promises was not recorded"];
    const doubted = asked.map(([, seen]) => seen).find((seen) => seen.verdict === "unknown");
    const shown = doubted ? null : evidence(setting, at), lacking = doubted || last;
    if (!shown) return ["cannot tell", `${lacking.fault || need.survive}: ${lacking.verdict || "not run"}${lacking.why ? `, ${lacking.why}` : ""}`];
    if (need.p99 !== null) {
      const put = setting.puts[need.size];
      if (!put || put[1] === null) return ["cannot tell", "no p99 at this size (it takes 368 puts)"];
      if (put[1] > need.p99) return ["no", `p99 ${ms(put[1])}`];
    }
    return ["yes", null, shown.high];
  }

  function sentence(held, need) {
    const of = (word) => data.settings.filter((_, at) => held[at][0] === word);
    const speed = (setting) => (setting.puts[need.size] || [Infinity])[0];
    const yes = of("yes").sort((one, other) => speed(one) - speed(other));
    const names = yes.map((one) => one.label + (speed(one) < Infinity ? ` (median put ${ms(speed(one))})` : "")).join(", ");
    const highs = held.filter((one) => one[0] === "yes").map((one) => one[2]).filter((high) => high !== null);
    const bound = highs.length ? ` A loss rate of up to ${Number((100 * Math.max(...highs)).toPrecision(2))} % is still possible.` : "";
    const whys = [...new Set(held.filter((one) => one[0] === "cannot tell").map((one) => one[1]))];
    const untold = of("cannot tell").length;
    return (yes.length ? `${yes.length} of ${data.settings.length} settings do: ${names}.${bound}` : `None of ${data.settings.length} settings is known to do.`) +
      ` ${of("no").length} do not.` + (untold ? ` ${untold} cannot be told (${whys.slice(0, 3).join("; ")}${whys.length > 3 ? "; …" : ""}).` : "");
  }

  function filter() {
    const asked = new FormData(form);
    const need = { survive: asked.get("survive"), window: Number(asked.get("window") || 0), size: asked.get("size"),
      p99: asked.get("p99") === "" ? null : Number(asked.get("p99")) };
    const held = data.settings.map((setting) => hold(setting, need));
    for (const row of rows) {
      const [word, why] = held[row.dataset.s];
      row.hidden = word === "no";
      row.title = why ? `${word}: ${why}` : word;
    }
    answer.textContent = sentence(held, need);
  }

  if (form) {
    form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
    form.addEventListener("change", filter);
    form.addEventListener("reset", () => { for (const row of rows) { row.hidden = false; row.title = ""; } answer.textContent = greeting; });
  }

  function copy(text) {
    const box = document.createElement("textarea");  // works without permission, and where the clipboard API is refused
    box.value = text;
    document.body.append(box);
    box.select();
    const worked = document.execCommand("copy");
    box.remove();
    done.textContent = worked ? "Copied." : "Your browser refused; select the text yourself.";
    return worked;
  }

  function csv() {
    const { columns, rows: count } = data.trials, names = Object.keys(columns);
    const at = (column, row) => Array.isArray(column) ? column[row] : "all" in column ? column.all : column.words[column.at[row]];
    const cell = (value) => value === null ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
    const lines = Array.from({ length: count }, (_, row) => names.map((name) => cell(at(columns[name], row))).join(","));
    return [names.join(","), ...lines].join("\n") + "\n";
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.copy === "markdown") copy(data.markdown);
    if (button.dataset.copy === "code" && copy(button.previousElementSibling.textContent)) button.textContent = "copied";
    if (button.dataset.save) {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
      link.download = "trials.csv";
      link.click();
    }
    button.focus();
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();

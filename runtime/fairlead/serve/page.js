"use strict";
// The token stays in this tab. All texts of runs are set as text: none becomes a part of the page.
const at = (id) => document.getElementById(id);
let offers = [], chosen = null, next = 0, timer = null;

async function ask(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem("token")}`, ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({ findings: [{ what: `the server answered ${answer.status}` }] }));
  if (answer.status === 401) leave();
  throw new Error(body.findings.map((f) => [f.what, f.why, f.remedy && `next: ${f.remedy}`].filter(Boolean).join("\n")).join("\n\n"));
}

async function tried(work) {
  at("errors").replaceChildren();
  try { return await work(); } catch (error) {
    const item = document.createElement("li");
    item.textContent = error.message;
    at("errors").append(item);
  }
}

const made = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text ?? "", className: name ?? "" });
const words = (parameters) => Object.entries(parameters).map(([k, v]) => `${k}=${v}`).join(" ");
const span = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);

function leave() {
  sessionStorage.removeItem("token");
  clearTimeout(timer);
  at("inside").hidden = at("leave").hidden = true;
  at("enter").hidden = false;
  at("status").textContent = "";
}

async function enter() {
  offers = await (await ask("api/offers")).json();
  at("enter").hidden = true;
  at("inside").hidden = at("leave").hidden = false;
  at("offer").replaceChildren(...offers.map((o) => Object.assign(made("option", o.title || o.name), { value: o.name })));
  fields();
  await refresh();
}

function fields() {
  const offer = offers.find((o) => o.name === at("offer").value);
  at("parameters").replaceChildren(...Object.entries(offer?.parameters ?? {}).map(([name, p]) => {
    const label = made("label", p.meaning ? `${name}: ${p.meaning}` : name);
    let field;
    if (p.kind === "choice") {
      field = made("select");
      field.append(...p.choices.map((c, i) => Object.assign(made("option", String(c)), { value: i, selected: c === p.default })));
    } else {
      field = made("input");
      field.required = p.default === undefined;
      field.value = p.default ?? "";
      if (p.kind !== "text") Object.assign(field, { type: "number", min: p.low, max: p.high, step: p.kind === "int" ? 1 : "any" });
    }
    field.name = name;
    label.append(field);
    return label;
  }));
}

function given() {
  const offer = offers.find((o) => o.name === at("offer").value);
  const parameters = {};
  for (const field of at("parameters").querySelectorAll("input, select")) {
    const p = offer.parameters[field.name];
    if (p.kind === "choice") parameters[field.name] = p.choices[field.value];
    else if (field.value !== "") parameters[field.name] = p.kind === "text" ? field.value : Number(field.value);
  }
  return { run: offer.name, parameters };
}

async function refresh() {
  clearTimeout(timer);
  const runs = await (await ask("api/runs")).json();
  at("none").hidden = runs.length > 0;
  at("status").textContent = `${runs.filter((r) => r.state === "running").length} running, ${runs.filter((r) => r.state === "queued").length} queued`;
  at("runs").replaceChildren(...runs.map((run) => {
    const row = made("tr", "", run.id === chosen ? "chosen" : "");
    const show = made("button", run.run);
    show.onclick = () => tried(() => choose(run));
    const first = made("td");
    first.append(show);
    const state = made("td", run.state + (run.why && run.why !== "cancelled" ? `: ${run.why}` : run.state === "failed" ? `: exit code ${run.exit_code}` : ""), run.state);
    const time = run.started ? span((run.ended ?? Date.now() / 1000) - run.started) : "";
    const last = made("td");
    if (["queued", "running"].includes(run.state)) {
      const cancel = made("button", "Cancel");
      cancel.onclick = () => tried(async () => { await ask(`api/runs/${run.id}/cancel`, { method: "POST" }); await refresh(); });
      last.append(cancel);
    }
    row.append(first, made("td", words(run.parameters)), state, made("td", new Date(run.created * 1000).toLocaleString()), made("td", time), last);
    return row;
  }));
  const open = runs.find((run) => run.id === chosen);
  if (open) await follow(open);
  timer = setTimeout(() => tried(refresh), 2000);
}

async function choose(run) {
  chosen = run.id;
  next = 0;
  at("one").hidden = false;
  at("title").textContent = `${run.run}, ${run.id}`;
  at("log").textContent = "";
  await refresh();
}

async function follow(run) {
  const answer = await ask(`api/runs/${run.id}/log?start=${next}`);
  const text = await answer.text();
  if (chosen !== run.id) return;
  next = Number(answer.headers.get("X-Next-Start"));
  const log = at("log"), below = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  log.append(text);
  if (below) log.scrollTop = log.scrollHeight;
  const files = await (await ask(`api/runs/${run.id}/files`)).json();
  const names = files.map((f) => [f.name, `api/runs/${run.id}/files/${f.name.split("/").map(encodeURIComponent).join("/")}`]);
  if (!["queued", "running"].includes(run.state)) names.unshift(["run record", `api/runs/${run.id}/record`]);
  at("links").replaceChildren(...names.map(([name, path]) => {
    const button = made("button", name);
    button.onclick = () => tried(() => fetched(name === "run record" ? `${run.id}.tar.gz` : name.split("/").pop(), path));
    return button;
  }));
}

async function fetched(name, path) {
  const url = URL.createObjectURL(await (await ask(path)).blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

at("enter").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  at("token").value = "";
  tried(enter);
};
at("submit").onsubmit = (event) => {
  event.preventDefault();
  const headers = { "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) };
  tried(async () => {
    const run = await (await ask("api/runs", { method: "POST", headers, body: JSON.stringify(given()) })).json();
    await choose(run);
  });
};
at("offer").onchange = fields;
at("leave").onclick = leave;
if (sessionStorage.getItem("token")) tried(enter);

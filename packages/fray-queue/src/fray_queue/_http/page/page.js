// The page asks the server every second and writes text, never markup: names and ids come from strangers.
"use strict";

const EVERY = 1000;
const SVG = "http://www.w3.org/2000/svg";
let shown = null; // name of the queue whose dead letters are shown

const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function button(text, act, className) {
  const made = element("button", text, className);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

async function ask(path, method = "GET", body) {
  const options = { method, headers: { "Content-Type": "application/json" } };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(path, options);
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Error(told.message ?? `the server answered ${response.status}`);
  }
  return response.json();
}

function plot(values) {
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "polyline");
  const top = Math.max(1, ...values);
  const step = 100 / Math.max(1, values.length - 1);
  line.setAttribute("points", values.map((value, at) => `${at * step},${29 - (28 * value) / top}`).join(" "));
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(line);
  const cell = element("td", undefined, "plot");
  cell.append(svg, String(values.at(-1) ?? 0));
  return cell;
}

function age(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// Rows and buttons stay as long as what they stand for: a new one would lose the focus, and a click half made.
function fill(body, things, keyOf, make, update) {
  const rows = new Map([...body.rows].map((row) => [row.key, row]));
  things.forEach((thing, at) => {
    const key = keyOf(thing);
    const row = rows.get(key) ?? make(thing);
    rows.delete(key);
    row.key = key;
    update(row, thing);
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  });
  for (const row of rows.values()) row.remove();
}

function queueRow(queue) {
  const row = element("tr");
  row.dataset.queue = queue.name;
  row.append(element("td", queue.name, "name"));
  row.append(element("td", undefined, "number pending"), element("td", undefined, "number in-flight"));
  const dead = element("td", undefined, "number dead");
  dead.append(button("", () => show(queue.name)), element("span", "0"));
  row.append(dead, element("td", undefined, "number"), element("td"), element("td"), element("td"));
  return row;
}

function updateQueue(row, queue) {
  const [, pending, inFlight, dead, oldest, ...plots] = row.cells;
  pending.textContent = queue.pending;
  inFlight.textContent = queue.in_flight;
  const [open, none] = dead.children;
  open.textContent = queue.dead;
  open.hidden = !queue.dead;
  none.hidden = Boolean(queue.dead);
  oldest.textContent = queue.size ? age(queue.oldest_seconds) : "–";
  ["pushed", "done", "size"].forEach((name, at) => plots[at].replaceWith(plot(queue.plots[name])));
}

function letterRow(name, letter) {
  const row = element("tr");
  row.append(element("td", letter.item_id, "item"), element("td", undefined, "number"));
  row.append(element("td"), element("td", letter.bytes, "number"));
  const actions = element("td");
  actions.append(button("Requeue", () => act(name, "requeue", { item_ids: [letter.item_id] })), " ");
  actions.append(button("Delete", () => act(name, "purge", { dead: true, item_ids: [letter.item_id] }), "danger"));
  row.append(actions);
  return row;
}

function updateLetter(row, letter) {
  const story = letter.history.map(([number, outcome, start, end]) => `${outcome} after ${age(end - start)}`);
  row.cells[1].textContent = letter.attempts;
  row.cells[2].textContent = story.join(", ");
}

async function act(name, verb, body) {
  const problem = byId("problem");
  try {
    await ask(`queues/${encodeURIComponent(name)}/${verb}`, "POST", body);
    problem.hidden = true;
  } catch (error) {
    problem.textContent = `${verb} of ${name} was refused: ${error.message}`;
    problem.hidden = false;
  }
  await refresh();
}

async function show(name) {
  shown = name;
  await refresh();
}

async function refreshLetters() {
  byId("letters").hidden = shown === null;
  if (shown === null) return;
  const name = shown;
  const { dead } = await ask(`queues/${encodeURIComponent(name)}/dead`);
  byId("letters-name").textContent = name;
  byId("letters").hidden = dead.length === 0;
  const body = byId("letters").querySelector("tbody");
  const keyOf = (letter) => `${name} ${letter.item_id}`;
  fill(body, dead, keyOf, (letter) => letterRow(name, letter), updateLetter);
}

async function refresh() {
  const state = byId("state");
  try {
    const { queues } = await ask("queues");
    byId("queues").hidden = queues.length === 0;
    byId("empty").hidden = queues.length !== 0;
    if (!queues.some((queue) => queue.name === shown)) shown = null;
    fill(byId("queues").querySelector("tbody"), queues, (queue) => queue.name, queueRow, updateQueue);
    await refreshLetters();
    state.textContent = `live, ${new Date().toLocaleTimeString()}`;
    state.classList.remove("away");
  } catch (error) {
    state.textContent = `no answer: ${error.message}`;
    state.classList.add("away");
  }
}

byId("requeue-all").addEventListener("click", () => act(shown, "requeue", { item_ids: null }));
byId("delete-all").addEventListener("click", () => act(shown, "purge", { dead: true, item_ids: null }));

async function run() {
  if (!document.hidden) await refresh();
  setTimeout(run, EVERY);
}
run();

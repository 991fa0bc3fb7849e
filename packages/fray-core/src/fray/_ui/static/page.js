// Keeps the parts of a page fresh, sends its forms as they are typed, asks before it does something.
// The markup of a part is made by the server, where every text of a stranger is escaped.
"use strict";

const SHORTEST = 1000; // milliseconds between two looks, while something changes
const LONGEST = 10000; // when nothing has changed for a while, or nobody answers
const GROWTH = 1.5;
const LATEST_ANSWER = 20000;

const byId = (id) => document.getElementById(id);

// --- what changes in the page, and nothing else: focus, selection and scrolling stay where they are ---

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key ?? node.id ?? "" : "";
}

function alike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const known = keyOf(child) ? keyed.get(keyOf(child)) : undefined;
    if (known && known !== at && alike(known, child)) old.insertBefore(known, at);
    const here = known && alike(known, child) ? known : at && alike(at, child) ? at : null;
    if (here) {
      morph(here, child);
      at = here.nextSibling;
    } else {
      old.insertBefore(child, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// --- the parts ---

class Part {
  constructor(section) {
    this.section = section;
    this.pause = SHORTEST;
    this.etag = null;
    this.timer = null;
    this.asking = null;
    this.problem = null;
  }

  refresh() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.pause = SHORTEST;
    this.look();
  }

  async look() {
    if (document.hidden) return; // it continues when the page is shown
    const asking = new AbortController();
    this.asking = asking;
    const late = setTimeout(() => asking.abort("late"), LATEST_ANSWER);
    try {
      const changed = await this.ask(asking.signal);
      this.pause = changed ? SHORTEST : Math.min(LONGEST, this.pause * GROWTH);
      this.problem = null;
    } catch (error) {
      if (this.asking !== asking) return; // another look has begun
      this.pause = Math.min(LONGEST, this.pause * 2);
      this.problem = error.message ?? "it takes too long";
    } finally {
      clearTimeout(late);
    }
    if (this.asking !== asking) return;
    this.asking = null;
    this.section.classList.toggle("stale", Boolean(this.problem));
    showState();
    this.timer = setTimeout(() => this.look(), this.pause);
  }

  async ask(signal) {
    const headers = this.etag ? { "If-None-Match": this.etag } : {};
    const response = await fetch(this.section.dataset.part + location.search, { headers, signal, cache: "no-store" });
    if (response.status === 304) return false;
    if (!response.ok) throw new Error(await reasonOf(response));
    const text = await response.text();
    const fresh = document.createElement("template");
    fresh.innerHTML = text;
    const log = this.section.querySelector(".log");
    morphChildren(this.section, fresh.content);
    this.section.setAttribute("aria-busy", String(Boolean(this.section.querySelector("[data-state=loading], [data-state=part]"))));
    if (!log || byId("follow")?.checked) toTheEnd(this.section);
    keepFocus();
    this.etag = response.headers.get("ETag");
    return true;
  }
}

async function reasonOf(response) {
  const told = await response.json().catch(() => ({}));
  if (response.status === 401) return told.message ?? "the token is not good any more: open the link that was printed";
  return told.message ?? told.error ?? `the server answered ${response.status}`;
}

function toTheEnd(section) {
  const log = section.querySelector(".log");
  if (log && byId("follow")?.checked) log.scrollTop = log.scrollHeight;
}

const parts = [...document.querySelectorAll("[data-part]")].map((section) => new Part(section));

function showState() {
  const state = byId("state");
  const problem = parts.map((part) => part.problem).find(Boolean);
  const said = problem ? `no answer: ${problem}` : "live";
  state.classList.toggle("away", Boolean(problem));
  if (state.textContent !== said) state.textContent = said; // told once, not every second
}

const refreshAll = () => parts.forEach((part) => part.refresh());
document.addEventListener("visibilitychange", () => document.hidden || refreshAll());

// --- filters: sent as they are typed, kept in the address ---

let typing = null;

function filter(form) {
  const query = new URLSearchParams(location.search);
  for (const place of ["page", "after"]) query.delete(place);
  for (const [name, value] of new FormData(form)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  history.replaceState(null, "", `?${query}`);
  refreshAll();
}

for (const form of document.querySelectorAll("form.filter")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    filter(form);
  });
  form.addEventListener("input", (event) => {
    clearTimeout(typing);
    if (event.target.id === "follow") document.querySelectorAll("[data-part]").forEach(toTheEnd);
    else typing = setTimeout(() => filter(form), 300);
  });
}

// --- what is done after a question ---

function confirmed(question, verb) {
  const dialog = byId("confirm");
  const [no, yes] = dialog.querySelectorAll("button");
  byId("question").textContent = question;
  yes.textContent = verb;
  dialog.returnValue = "no";
  return new Promise((settle) => {
    dialog.addEventListener("close", () => settle(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
    no.focus();
  });
}

function tell(place, text, kind) {
  const said = document.createElement("p");
  said.className = kind;
  said.textContent = text;
  byId("notice").replaceChildren();
  byId("problem").replaceChildren();
  byId(place).append(said);
}

const underWay = new Set(); // what is asked for and not yet done, by key
let lastButton = null;

// A button goes away with what it was for; who pressed it by keyboard goes on from the content.
function keepFocus() {
  if (!lastButton || lastButton.isConnected) return;
  lastButton = null;
  if (document.activeElement === document.body) byId("main").focus();
}

async function act(button) {
  const { act: address, ask, body, key } = button.dataset;
  const verb = button.textContent;
  if (underWay.has(key) || !(await confirmed(ask, verb))) return;
  underWay.add(key);
  lastButton = button;
  tell("notice", `${verb}: asked for…`, "done");
  try {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(address, { method: "POST", headers, body });
    if (!response.ok) throw new Error(await reasonOf(response));
    const told = await response.json();
    tell("notice", told.done ?? `${verb}: ${told.count ?? "done"}`, "done");
  } catch (error) {
    tell("problem", `${verb} was refused: ${error.message}`, "failure");
  } finally {
    underWay.delete(key);
  }
  refreshAll();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-act]");
  if (button) act(button);
});

document.querySelectorAll("[data-part]").forEach(toTheEnd);
refreshAll();

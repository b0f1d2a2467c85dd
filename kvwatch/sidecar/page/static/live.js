// Keeps the page up to date: asks for it again, takes over what changed, and says so when it can't.

import { Charts } from "./charts.js";
import { morph } from "./morph.js";

const EVERY_MS = 2000;
const PATIENCE_MS = 8000;
const LONGEST_MS = 30000;

const main = document.querySelector("main");
const live = document.querySelector("#live");
const charts = new Charts(main);
const words = document.createElement("span");
const wait = document.createElement("span");
const button = document.createElement("button");
const told = document.createElement("p");
wait.setAttribute("aria-hidden", "true"); // a count that goes down is not for reading out
told.className = "unseen";
told.setAttribute("role", "status");
live.append(words, wait, " ", button);
document.body.append(told);

let timer = 0;
let failures = 0;
let lostAt = 0;
let paused = false;
let again = 0;

/** The findings on a page: title by id. */
function findings(of) {
  return new Map([...of.querySelectorAll("[data-finding]")].map((one) => [one.id, one.dataset.finding]));
}

/** Tells those who do not see the page what began and what ended. */
function tell(before, after) {
  const began = [...after].filter(([id]) => !before.has(id));
  const ended = [...before].filter(([id]) => !after.has(id));
  const lines = [...began.map(([, title]) => `New: ${title}.`), ...ended.map(([, title]) => `Over: ${title}.`)];
  if (lines.length) told.textContent = lines.join(" ");
  for (const [id] of began) document.getElementById(id)?.classList.add("new");
}

/** kvwatch answers, and no longer has what this page is about. */
class Gone extends Error {}

async function ask() {
  const answer = await fetch(location.pathname + location.search, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status === 404) throw new Gone("This engine is no longer there");
  if (!answer.ok) throw new Error(`kvwatch answered ${answer.status}`);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden || paused) return;
  try {
    const fresh = await ask();
    if (fresh.body.dataset.version !== document.body.dataset.version) return location.reload();
    const before = findings(main);
    morph(main, fresh.querySelector("main"));
    tell(before, findings(main));
    await charts.refresh();
    failures = 0;
    say("Live", "");
    later(EVERY_MS);
  } catch (error) {
    if (!failures) lostAt = Date.now();
    failures += 1;
    const why = error.name === "TimeoutError" ? "no answer" : error instanceof TypeError ? "not reachable" : error.message;
    const at = new Date(lostAt).toISOString().slice(11, 19); // in UTC, as all times of the page
    const lost = `Connection lost at ${at} UTC (${why})`;
    say(`${error instanceof Gone ? error.message : lost}: what is below is old.`, "lost");
    later(Math.min(1000 * 2 ** (failures - 1), LONGEST_MS) * (0.8 + 0.4 * Math.random()));
  }
}

function later(ms) {
  clearTimeout(timer);
  again = Date.now() + ms;
  timer = setTimeout(refresh, ms);
}

function say(text, name) {
  if (words.textContent !== text) words.textContent = text;
  words.className = name;
}

setInterval(() => {
  const left = Math.max(Math.ceil((again - Date.now()) / 1000), 0);
  wait.textContent = failures && !paused ? ` Asking again in ${left} s.` : "";
}, 500);

function label() {
  button.textContent = paused ? "Go on" : "Pause";
}

button.type = "button";
button.addEventListener("click", () => {
  paused = !paused;
  label();
  if (paused) say("Paused: what is below is old.", "");
  else refresh();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
label();
charts.refresh().then(() => {
  say("Live", "");
  later(EVERY_MS);
}, refresh);

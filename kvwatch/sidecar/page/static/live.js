// Keeps the page up to date: fetches it again, patches what changed, and shows when the connection is lost.

import { Charts } from "./charts.js";
import { morph } from "./morph.js";

const REFRESH_MS = 2000;
const TIMEOUT_MS = 8000;
const MAX_RETRY_MS = 30000;

const main = document.querySelector("main");
const live = document.querySelector("#live");
const charts = new Charts(main);
const status = document.createElement("span");
const countdown = document.createElement("span");
const button = document.createElement("button");
const announcement = document.createElement("p");
countdown.setAttribute("aria-hidden", "true"); // a screen reader would read out every second
announcement.className = "unseen";
announcement.setAttribute("role", "status");
live.append(status, countdown, " ", button);
document.body.append(announcement);

let timer = 0;
let failures = 0;
let lostAt = 0;
let paused = false;
let refreshAt = 0;

/** The findings on the page: title by id. */
function findings() {
  return new Map([...main.querySelectorAll("[data-finding]")].map((one) => [one.id, one.dataset.finding]));
}

/** Announces new and resolved findings to screen readers, and marks the new ones. */
function announce(before, after) {
  const added = [...after].filter(([id]) => !before.has(id));
  const resolved = [...before].filter(([id]) => !after.has(id));
  const lines = [...added.map(([, title]) => `New: ${title}.`), ...resolved.map(([, title]) => `Resolved: ${title}.`)];
  if (lines.length) announcement.textContent = lines.join(" ");
  for (const [id] of added) document.getElementById(id)?.classList.add("new");
}

/** kvwatch answers, but no longer has the engine of this page. */
class EngineGone extends Error {}

async function fetchPage() {
  const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (answer.status === 404) throw new EngineGone("This engine is gone");
  if (!answer.ok) throw new Error(`kvwatch answered ${answer.status}`);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden || paused) return;
  try {
    const page = await fetchPage();
    if (page.body.dataset.version !== document.body.dataset.version) return location.reload();
    const before = findings();
    morph(main, page.querySelector("main"));
    announce(before, findings());
    await charts.refresh();
    failures = 0;
    show("Live");
    schedule(REFRESH_MS);
  } catch (error) {
    if (!failures) lostAt = Date.now();
    failures += 1;
    const why = error.name === "TimeoutError" ? "timeout" : error instanceof TypeError ? "unreachable" : error.message;
    const at = new Date(lostAt).toISOString().slice(11, 19); // UTC, like all times on the page
    const lost = error instanceof EngineGone ? error.message : `Connection lost at ${at} UTC (${why})`;
    show(`${lost}. The data below is out of date.`, "lost");
    schedule(Math.min(1000 * 2 ** (failures - 1), MAX_RETRY_MS) * (0.8 + 0.4 * Math.random()));
  }
}

function schedule(ms) {
  clearTimeout(timer);
  refreshAt = Date.now() + ms;
  timer = setTimeout(refresh, ms);
}

function show(text, name = "") {
  if (status.textContent !== text) status.textContent = text;
  status.className = name;
}

function pause(now) {
  paused = now;
  button.textContent = paused ? "Resume" : "Pause";
  if (paused) show("Paused. The data below is not updated.");
}

setInterval(() => {
  const left = Math.max(Math.ceil((refreshAt - Date.now()) / 1000), 0);
  countdown.textContent = failures && !paused ? ` Retrying in ${left} s.` : "";
}, 500);
button.type = "button";
button.addEventListener("click", () => {
  pause(!paused);
  refresh();
});
document.addEventListener("visibilitychange", refresh);
pause(false);
charts.refresh().then(() => {
  show("Live");
  schedule(REFRESH_MS);
}, refresh);

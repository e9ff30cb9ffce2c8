// Replaces elements by those that the server sends. The server draws; this script keeps the reader's
// own state: which jobs are open, the typed text, the focus.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);

  // Attributes that the reader's actions set, and the server never does.
  const own = (el, name) => name === "open" && el.localName === "details" || name === "hidden" && el.classList.contains("job");

  const parse = (html) => {
    const t = document.createElement("template");
    t.innerHTML = html; // escaped by the server's templates; scripts in it would not run
    return t.content.firstElementChild;
  };

  // morph changes old into next, and does not touch equal parts: so the focus, a selection and the
  // position in a list stay.
  function morph(old, next) {
    if (old.isEqualNode(next)) return;
    for (const { name } of [...old.attributes]) if (!next.hasAttribute(name) && !own(old, name)) old.removeAttribute(name);
    for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    let at = old.firstChild;
    for (const child of [...next.childNodes]) {
      const id = child.nodeType === 1 && child.id;
      let match = null;
      if (id) {
        for (let o = at; o; o = o.nextSibling) if (o.id === id) { match = o; break; }
      } else if (at && at.nodeName === child.nodeName && !at.id) {
        match = at;
      }
      if (!match) {
        old.insertBefore(child, at);
        continue;
      }
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      if (child.nodeType !== 1) {
        if (match.data !== child.data) match.data = child.data;
      } else if (!child.hasAttribute("data-keep")) {
        morph(match, child);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  // arrange makes a list contain the elements with these ids, in this order.
  function arrange(list, ids, made) {
    const focused = document.activeElement;
    let at = list.firstElementChild;
    for (const id of ids) {
      const el = byId(id) || made(id);
      if (!el) continue;
      if (el === at) at = at.nextElementSibling;
      else list.insertBefore(el, at);
    }
    while (at) {
      const gone = at;
      at = at.nextElementSibling;
      gone.remove();
    }
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  // The newest version of each element that arrived since the last frame.
  let set = {}, lists = {}, version = "", waiting = false;

  function apply() {
    waiting = false;
    const made = new Set();
    // An element may move from one list to another: the list that has it now comes first.
    for (const [id, ids] of Object.entries(lists)) {
      const list = byId(id);
      if (list) arrange(list, ids, (item) => {
        made.add(item);
        return set[item] && parse(set[item]);
      });
    }
    for (const [id, html] of Object.entries(set)) {
      const el = byId(id);
      if (el && !made.has(id)) morph(el, parse(html));
    }
    if (set.events) announce();
    set = {};
    lists = {};
    filter();
    tick();
    document.body.dataset.version = version;
    document.body.dataset.draws = String(Number(document.body.dataset.draws || 0) + 1);
  }

  function take(event) {
    const got = JSON.parse(event.data);
    Object.assign(set, got.set);
    Object.assign(lists, got.lists);
    version = event.lastEventId;
    if (document.hidden) apply(); // there are no frames
    else if (!waiting) {
      waiting = true;
      requestAnimationFrame(apply);
    }
  }

  // announce tells screen readers about refusals and deaths.
  let heard = newest();
  function newest() {
    const first = document.querySelector("#events .event");
    return first ? first.dataset.when : "";
  }
  function announce() {
    const news = [...document.querySelectorAll("#events .refusal, #events .death")].filter((li) => li.dataset.when > heard).slice(0, 3);
    if (news.length) byId("said").textContent = news.map((li) => li.querySelector(".what").textContent + ": " + li.querySelector("p").textContent).join(" ");
    heard = newest() || heard;
  }

  // live shows whether the page is up to date.
  function live(on, text) {
    const el = byId("live");
    el.className = "live " + (on ? "on" : "off");
    if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
  }
  function connect() {
    const stream = new EventSource("stream?since=" + encodeURIComponent(document.body.dataset.version));
    stream.onopen = () => live(true, "live");
    stream.onmessage = take;
    stream.onerror = () => {
      live(false, "not connected; trying again");
      if (stream.readyState === EventSource.CLOSED) { // it was refused; the browser does not try again
        stream.close();
        setTimeout(connect, 3000);
      }
    };
  }

  // tick updates the shown durations.
  function tick() {
    for (const el of document.querySelectorAll("time[data-ago]")) {
      const s = Math.max(0, Math.floor((Date.now() - Date.parse(el.dateTime)) / 1000));
      const ended = el.closest(".job").classList.contains("ended") ? " ago" : "";
      const text = (s < 60 ? "<1 min" : s < 7200 ? Math.floor(s / 60) + " min" : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days") + ended;
      if (el.textContent !== text) el.textContent = text;
    }
  }

  function filter() {
    const input = byId("filter");
    if (!input) return;
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    const all = document.querySelectorAll("#jobs > .job");
    for (const job of all) {
      const hide = !words.every((w) => job.dataset.search.includes(w));
      if (job.hidden !== hide) job.hidden = hide;
      if (!hide) shown++;
    }
    byId("no-match").hidden = !words.length || shown > 0;
  }

  // openTarget opens the job that a link leads to.
  function openTarget() {
    const el = location.hash.startsWith("#job-") && byId(location.hash.slice(1));
    if (!el) return;
    el.hidden = false;
    const around = el.parentElement.closest("details");
    if (around) around.open = true;
    const details = el.querySelector("details");
    details.open = true;
    details.querySelector("summary").focus({ preventScroll: true });
    el.scrollIntoView({ block: "start" });
  }

  async function change(event) {
    const form = event.target.closest(".limit-form");
    if (!form) return;
    event.preventDefault();
    const says = form.querySelector("output");
    try {
      const answer = await fetch(form.action, { method: "POST", headers: { Accept: "application/json" }, body: new URLSearchParams(new FormData(form)) });
      const said = (answer.headers.get("Content-Type") || "").startsWith("application/json") ? await answer.json() : { ok: false, text: await answer.text() };
      says.className = said.ok ? "" : "failed";
      says.textContent = said.text;
      if (said.ok) form.reset();
    } catch {
      says.className = "failed";
      says.textContent = "not connected: nothing was changed";
    }
  }

  const url = new URL(location.href);
  if (url.searchParams.has("token")) { // the cookie has it now
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
  document.addEventListener("submit", change);
  document.addEventListener("input", (e) => e.target.id === "filter" && filter());
  document.addEventListener("keydown", (e) => {
    const input = byId("filter");
    if (!input || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/" && !e.target.closest("input, select, textarea")) {
      e.preventDefault();
      input.focus();
      input.select();
    } else if (e.key === "Escape" && e.target === input) {
      input.value = "";
      filter();
    }
  });
  addEventListener("hashchange", openTarget);
  setInterval(tick, 5000);
  tick();
  filter();
  openTarget();
  connect();
})();

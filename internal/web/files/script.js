// Replaces elements by those that the server sends. The server draws; this script keeps the reader's
// own state: which jobs are open, the typed text, the focus.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);

  // Attributes that belong to the reader once the element is there.
  const own = (el, name) => name === "open" && el.localName === "details" || name === "hidden" && el.matches(".job, .machine") || name === "aria-pressed" || name === "data-dim";

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
    for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value && !own(old, name)) old.setAttribute(name, value);
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
    if (lists.jobs) order = lists.jobs;
    for (const [id, ids] of Object.entries(lists)) {
      const list = byId(id);
      if (list) arrange(list, id === "jobs" ? sorted(ids) : ids, (item) => {
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
    if (!byId("jobs")?.matches(":hover, :focus-within")) sort(); // no job moves away from the pointer
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

  // announce tells screen readers about refusals, deaths and stops.
  let heard = newest();
  function newest() {
    const first = document.querySelector("#events .event");
    return first ? first.dataset.when : "";
  }
  function announce() {
    const news = [...document.querySelectorAll("#events .refusal, #events .death, #events .stop")].filter((li) => li.dataset.when > heard).slice(0, 3);
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
      const ended = el.closest(".job.ended") ? " ago" : "";
      const text = (s < 60 ? "<1 min" : s < 7200 ? Math.floor(s / 60) + " min" : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days") + ended;
      if (el.textContent !== text) el.textContent = text;
    }
  }

  // The order of the jobs that the reader has chosen: a column and its direction, or the server's.
  const columns = { user: ["of", false], name: ["name", false], since: ["since", true], used: ["used", true], share: ["share", true], refused: ["refused", true] };
  let order = [...document.querySelectorAll("#jobs > .job")].map((el) => el.id), column = "", down = false;

  // sorted returns ids in the chosen order. Jobs that are not there yet come last.
  function sorted(ids) {
    if (!column) return ids;
    const key = columns[column][0];
    const by = (a, b) => columns[column][1] ? a.dataset[key] - b.dataset[key] : a.dataset[key].localeCompare(b.dataset[key], undefined, { numeric: true });
    const there = ids.map(byId).filter(Boolean).sort((a, b) => down ? by(b, a) : by(a, b)).map((el) => el.id);
    return there.concat(ids.filter((id) => !byId(id)));
  }
  function sort() {
    const list = byId("jobs");
    if (list && column) arrange(list, sorted(order), () => null);
  }
  // sortBy chooses a column: first in its usual direction, then the other, then the server's order.
  function sortBy(name, descending) {
    column = name;
    down = descending;
    for (const b of document.querySelectorAll("[data-sort]")) {
      const on = b.dataset.sort === column;
      b.setAttribute("aria-pressed", String(on));
      if (on) b.dataset.order = down ? "down" : "up";
      else delete b.dataset.order;
    }
    if (column) sort();
    else if (byId("jobs")) arrange(byId("jobs"), order, () => null);
    const at = new URL(location.href);
    if (column) at.searchParams.set("sort", (down ? "-" : "") + column);
    else at.searchParams.delete("sort");
    if (at.href !== location.href) history.replaceState(null, "", at);
  }
  function press(button) {
    const name = button.dataset.sort, usual = columns[name][1];
    if (column !== name) sortBy(name, usual);
    else if (down === usual) sortBy(name, !usual);
    else sortBy("", false);
    byId("said").textContent = column ? "Sorted by " + button.textContent + (down ? ", descending" : ", ascending") : "Sorted as usual";
  }

  // only is the user whose parts and jobs are shown; null for all.
  let only = null, filtered = false;
  const has = (el) => el.matches(".machine") ? [...el.querySelectorAll(".area")].some((p) => p.dataset.of === only) : el.dataset.of === only;
  function filter() {
    const input = byId("filter");
    if (!input) return;
    const buttons = [...document.querySelectorAll("[data-user]")];
    if (only !== null && !buttons.some((b) => b.dataset.user === only)) only = null; // it has nothing left
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.user === only));
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const filters = only !== null || words.length > 0;
    if (byId("machines") && !filters && !filtered) return; // there are very many
    filtered = filters;
    for (const el of document.querySelectorAll("#devices .part, #devices .area, #machines .area")) el.toggleAttribute("data-dim", only !== null && el.dataset.of !== only);
    let shown = 0;
    for (const job of document.querySelectorAll("#jobs > .job, #machines > .machine")) {
      const hide = only !== null && !has(job) || !words.every((w) => job.dataset.search.includes(w));
      if (job.hidden !== hide) job.hidden = hide;
      if (!hide) shown++;
    }
    byId("no-match").hidden = !words.length && only === null || shown > 0;
  }

  // openTarget opens the job or the device that a link leads to.
  function openTarget() {
    const device = location.hash.startsWith("#gpu-") && byId(location.hash.slice(1));
    if (device) device.querySelector("details").open = true;
    const el = location.hash.startsWith("#job-") && byId(location.hash.slice(1));
    if (!el) return;
    if (el.hidden) { // show all again
      byId("filter").value = "";
      only = null;
      filter();
    }
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
    const button = form.querySelector("button"), says = form.querySelector("output");
    if (button.disabled) return; // the first request has no answer yet
    const say = (ok, text) => {
      let at = says;
      if (!says.isConnected) { // the job has ended, and its form is gone
        at = byId("late-answer");
        at.hidden = false;
      }
      at.classList.toggle("failed", !ok);
      at.textContent = text;
    };
    byId("late-answer").hidden = true;
    button.disabled = true;
    say(true, "Changing…");
    try {
      const answer = await fetch(form.action, { method: "POST", headers: { Accept: "application/json" }, body: new URLSearchParams(new FormData(form)) });
      const said = (answer.headers.get("Content-Type") || "").startsWith("application/json") ? await answer.json() : { ok: false, text: await answer.text() };
      say(said.ok, said.text || "the server answered " + answer.status + " without a word");
      if (said.ok) form.reset();
    } catch {
      say(false, "no answer: the table above shows the limit as soon as the page is connected again");
    }
    button.disabled = false;
  }

  // The accounts of a day or a week: the server draws them, and the table of the time that the reader selects
  // with the pointer on a plot, or with the two sliders.
  const usage = () => document.querySelector(".usage-body");
  const sliders = () => [...document.querySelectorAll(".brush input[type=range]")];
  let asked = 0;
  async function showUsage(span, from, to) {
    const number = ++asked, query = new URLSearchParams({ usage: span });
    if (from !== undefined) for (const [name, value] of Object.entries({ from, to })) query.set(name, value);
    for (const a of document.querySelectorAll("[data-span].span")) {
      if (a.dataset.span === span) a.setAttribute("aria-current", "true");
      else a.removeAttribute("aria-current");
    }
    const at = new URL(location.href);
    for (const name of ["usage", "from", "to"]) at.searchParams.delete(name);
    for (const [name, value] of query) at.searchParams.set(name, value);
    history.replaceState(null, "", at);
    try {
      const answer = await fetch("usage?" + query);
      const text = await answer.text();
      if (number !== asked) return; // the reader has gone on
      if (!answer.ok) throw new Error(text);
      const next = parse(text), old = usage();
      if (old && old.dataset.span === span) morph(old, next);
      else byId("usage-body").replaceChildren(next);
      for (const s of sliders()) s.value = s.getAttribute("value");
      brushed();
      if (from !== undefined) byId("said").textContent = "Usage of " + document.querySelector(".period").textContent;
    } catch {
      if (number === asked && !usage()) byId("usage-body").textContent = "No answer: the page is not connected.";
    }
  }
  // brushed shows the selected time before the server has answered.
  function brushed() {
    const [from, to] = sliders();
    if (!from) return;
    const { first, last } = usage().dataset, part = (v) => 100 * (v - first) / (last - first);
    for (const r of document.querySelectorAll(".unselected")) {
      const before = r.dataset.side === "before";
      r.setAttribute("x", before ? "0" : part(to.value) + "%");
      r.setAttribute("width", (before ? part(from.value) : 100 - part(to.value)) + "%");
    }
    for (const s of [from, to]) s.setAttribute("aria-valuetext", new Date(1000 * s.value).toLocaleString([], { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }));
  }
  // select moves the sliders; a time of less than a step is everything.
  function select(a, b) {
    const [from, to] = sliders(), { first, last, step } = usage().dataset;
    if (Math.abs(a - b) < step / 2) [a, b] = [Number(first), Number(last)];
    from.value = Math.min(a, b);
    to.value = Math.max(a, b);
    brushed();
  }
  function selected() {
    const [from, to] = sliders(), { first, last, span } = usage().dataset;
    if (!from || from.value === first && to.value === last) showUsage(span);
    else showUsage(span, from.value, to.value);
  }
  function startBrush(e) {
    const plot = e.target.closest?.(".usage-body .plot > svg[role=img]");
    if (!plot || e.button !== 0 || !sliders().length) return;
    const box = plot.getBoundingClientRect(), { first, last, step } = usage().dataset;
    const time = (x) => Math.min(Number(last), Number(first) + step * Math.round((last - first) / step * Math.max(0, Math.min(1, (x - box.left) / box.width))));
    const start = time(e.clientX);
    plot.setPointerCapture(e.pointerId);
    const move = (m) => select(start, time(m.clientX));
    plot.addEventListener("pointermove", move);
    plot.addEventListener("lostpointercapture", () => {
      plot.removeEventListener("pointermove", move);
      selected();
    }, { once: true });
    select(start, start);
    e.preventDefault();
  }
  function slide(e) {
    if (!e.target.matches?.(".brush input[type=range]")) return;
    const [from, to] = sliders(), step = Number(usage().dataset.step);
    if (Number(from.value) >= Number(to.value)) { // the other end stays, and is never passed
      if (e.target === from) from.value = Number(to.value) - step;
      else to.value = Number(from.value) + step;
    }
    brushed();
    if (e.type === "change") selected();
  }

  const url = new URL(location.href);
  if (url.searchParams.has("token")) { // the cookie has it now
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
  document.addEventListener("submit", change);
  document.addEventListener("pointerdown", startBrush);
  document.addEventListener("input", slide);
  document.addEventListener("change", slide);
  document.addEventListener("click", (e) => {
    const span = e.target.closest(".span[data-span]");
    if (span && !e.ctrlKey && !e.metaKey && !e.shiftKey) {
      e.preventDefault();
      showUsage(span.dataset.span);
      return;
    }
    if (e.target.closest("[data-brush]")) {
      select(0, 0);
      selected();
      return;
    }
    const button = e.target.closest("[data-sort], [data-user]");
    if (!button) return;
    if (button.dataset.sort) press(button);
    else {
      only = only === button.dataset.user ? null : button.dataset.user;
      filter();
    }
  });
  document.addEventListener("input", (e) => e.target.id === "filter" && filter());
  document.addEventListener("keydown", (e) => {
    const input = byId("filter");
    if (!input || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/" && !e.target.closest("input, select, textarea")) {
      e.preventDefault();
      input.focus();
      input.select();
    } else if ((e.key === "Enter" || e.key === "ArrowDown") && e.target === input) {
      e.preventDefault();
      document.querySelector("#jobs > .job:not([hidden]) summary, #machines > .machine:not([hidden]) a")?.focus();
    } else if ((e.key === "ArrowDown" || e.key === "ArrowUp") && e.target.matches(".machine-name")) {
      const all = [...document.querySelectorAll("#machines > .machine:not([hidden]) a")];
      const to = all[all.indexOf(e.target) + (e.key === "ArrowDown" ? 1 : -1)] || input;
      e.preventDefault();
      to.focus();
    } else if (e.key === "Escape" && e.target === input) {
      input.value = "";
      only = null;
      filter();
    }
  });
  addEventListener("hashchange", openTarget);
  setInterval(tick, 5000);
  setInterval(() => { // while the reader selects nothing
    if (usage() && !document.hidden && !byId("usage").matches(":hover, :focus-within")) selected();
  }, 60000);
  const chosen = url.searchParams.get("sort") || "";
  if (Object.hasOwn(columns, chosen.replace("-", ""))) sortBy(chosen.replace("-", ""), chosen.startsWith("-"));
  if (matchMedia("(max-width: 760px)").matches) for (const d of document.querySelectorAll(".gpu > details")) d.open = false; // a line for each
  tick();
  filter();
  openTarget();
  brushed();
  connect();
})();

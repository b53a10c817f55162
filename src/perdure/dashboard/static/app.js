"use strict";
// Everything here is an addition: without it each page can be read, and each form be sent.
(() => {
  const body = document.body, root = body.dataset.root, html = document.documentElement;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];

  // Times count on between two updates.
  const skew = body.dataset.now ? Date.now() - Date.parse(body.dataset.now) : 0;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  function short(seconds) {
    if (seconds < 1) return Math.round(seconds * 1000) + " ms";
    for (let n = 0; n < units.length; n++) {
      const [name, size] = units[n];
      if (seconds < size) continue;
      if (size === 1) return Math.floor(seconds) + " s";
      const whole = Math.floor(seconds / size), [lesser, part] = units[n + 1];
      const rest = Math.floor((seconds - whole * size) / part);
      return whole + " " + name + (rest && whole < 100 ? " " + rest + " " + lesser : "");
    }
  }
  function countOn(from = document) {
    const now = Date.now() - skew;
    for (const each of $$("time[datetime]", from)) {
      const seconds = (now - Date.parse(each.dateTime)) / 1000;
      const text = "age" in each.dataset ? short(Math.max(seconds, 0))
        : Math.abs(seconds) < 1 ? "now" : seconds > 0 ? short(seconds) + " ago" : "in " + short(-seconds);
      if (each.textContent !== text) each.textContent = text;
    }
  }
  setInterval(() => { if (!document.hidden) countOn(); }, 1000);

  // Live: the server says when this page has changed, and the parts that differ are replaced.
  const state = $("#live-state");
  let source = null, busy = false, again = false, problem = "", retry = 0;
  function show(text, on) {
    if (!state) return;
    state.hidden = false;
    state.textContent = text;
    state.toggleAttribute("data-on", on);
    state.toggleAttribute("data-bad", text === problem);
  }
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, {headers: {Accept: "text/html"}});
      if (answer.redirected) { location.assign(answer.url); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) {
        problem = $(".note.bad", page)?.textContent || "could not refresh";
        show(problem, false);
        return;
      }
      if (source?.readyState === EventSource.OPEN) { problem = ""; show("live", true); }
      countOn();
      countOn(page);
      prepare(page);
      for (const old of $$("[data-live]")) {
        const fresh = $('[data-live="' + old.dataset.live + '"]', page);
        if (!fresh || edited(old) || selected(old)) continue;
        for (const each of $$("details[id][open]", old)) {
          const twin = fresh.querySelector("#" + CSS.escape(each.id));
          if (twin) twin.open = true;
        }
        if (old.innerHTML === fresh.innerHTML && old.className === fresh.className) continue;
        const focus = old.contains(document.activeElement) && document.activeElement;
        const focused = focus && (focus.hasAttribute("href") ? '[href="' + CSS.escape(focus.getAttribute("href")) + '"]'
          : focus.matches("summary") && focus.parentNode.id ? "#" + CSS.escape(focus.parentNode.id) + ">summary"
          : focus.id ? "#" + CSS.escape(focus.id)
          : focus.dataset.copy ? '[data-copy="' + CSS.escape(focus.dataset.copy) + '"]' : "");
        const scrolled = $$('[tabindex="0"]', old).map((each) => [each.scrollLeft, each.scrollTop]);
        old.replaceWith(fresh);
        $$('[tabindex="0"]', fresh).forEach((each, n) => each.scrollTo(...scrolled[n] || [0, 0]));
        if (focused) $(focused, fresh)?.focus();
      }
      body.dataset.updates = 1 + (+body.dataset.updates || 0);
      mark();
    } catch (error) {
      show("offline", false);
    } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  }
  // Whether a person is entering something, which a fresh part would not have.
  function edited(part) {
    const fields = $$("input:not([type=hidden]),textarea,select", part);
    return fields.some((each) => each === document.activeElement || (each.options
      ? [...each.options].some((option) => option.selected !== option.defaultSelected)
      : each.value !== each.defaultValue));
  }
  // Whether a person has selected text, perhaps to copy it.
  function selected(part) {
    const selection = getSelection();
    return !selection.isCollapsed && selection.containsNode(part, true);
  }
  function listen() {
    clearTimeout(retry);
    if (source || document.hidden || !("stream" in body.dataset)) return;
    source = new EventSource(location.href.split("#")[0]);
    const compare = (event) => {
      const marker = JSON.parse(event.data);
      if (body.dataset.marker !== marker) refresh();
      body.dataset.marker = marker;
    };
    source.addEventListener("ready", (event) => { problem = ""; show("live", true); compare(event); });
    source.addEventListener("change", compare);
    source.addEventListener("tick", refresh);
    source.addEventListener("problem", (event) => { problem = JSON.parse(event.data); show(problem, false); });
    source.addEventListener("error", () => {
      show(problem || "reconnecting", false);
      if (source?.readyState !== EventSource.CLOSED) return;
      source = null;  // the server refused, and then a browser does not try again by itself
      retry = setTimeout(() => refresh().then(listen), 3000);
    });
  }
  function pause() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
    show("paused", false);
  }
  document.addEventListener("visibilitychange", () => document.hidden ? pause() : listen());
  addEventListener("pagehide", pause);
  addEventListener("pageshow", () => {
    for (const each of $$("form[data-sent]")) delete each.dataset.sent;  // of a page that the browser kept
    listen();
  });

  // Copying, and forms that are sent once.
  function prepare(from = document) {
    // Browsers have no clipboard for pages without TLS from another machine.
    for (const button of $$("button.copy", from)) {
      button.hidden = !navigator.clipboard;
      button.textContent = copied(button, from);
    }
  }
  function copied(button, from = document) {
    return $("#" + CSS.escape(button.dataset.copy) + " .j-more", from) ? "Copy what is shown" : "Copy";
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (button) {
      await navigator.clipboard.writeText($("#" + CSS.escape(button.dataset.copy)).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = copied(button); }, 1500);
    }
  });
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    else if (event.target.method === "post") event.target.dataset.sent = "1";
  });

  // Light and dark.
  function theme() {
    const dark = html.dataset.theme ? html.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    html.dataset.theme = dark ? "light" : "dark";
    document.cookie = "perdure_theme=" + html.dataset.theme + ";path=" + (root || "/") + ";max-age=31536000;samesite=lax";
  }
  $("#theme")?.addEventListener("click", (event) => { event.preventDefault(); theme(); });

  // The keyboard.
  const keys = $("#keys"), keysButton = $("#keys-button");
  keysButton.hidden = false;
  keysButton.addEventListener("click", () => keys.showModal());
  let chosen = null, before = "";
  const rows = () => $$("tr[data-href], .tl-row .tl-name a:first-child").map((each) => each.closest("tr,.tl-row"));
  const target = (row) => row.dataset.href || $("a", row)?.href;
  function mark() {
    if (chosen === null) return;
    for (const row of rows()) row.classList.toggle("on", target(row) === chosen);
  }
  function move(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => target(row) === chosen);
    const row = all[Math.min(Math.max(at < 0 ? 0 : at + by, 0), all.length - 1)];
    chosen = target(row);
    mark();
    row.scrollIntoView({block: "nearest"});
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input,textarea,select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const go = before === "g" ? {o: "/", l: "/runs", w: "/workers", a: "/audit"}[event.key] : null;
    before = event.key;
    if (go) { location.assign(root + go); return; }
    if (event.key === "/") { event.preventDefault(); $("#q").focus(); $("#q").select(); }
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "Enter" && chosen && !event.target.closest("a,button,summary")) location.assign(chosen);
    else if (event.key === "r") refresh();
    else if (event.key === "t") theme();
    else if (event.key === "?") keys.showModal();
  });

  // What was just done is said once: not again after a reload, nor to others who get the address.
  const address = new URL(location.href);
  if (address.searchParams.has("note")) {
    address.searchParams.delete("note");
    history.replaceState(null, "", address);
  }

  prepare();
  countOn();
  listen();
})();

"use strict";
// Keeps the marked regions of a page up to date. It fetches the same page and changes in place what
// is different, so that focus, ticked boxes, open parts and scrolled tables stay as they are.
(function () {
  const TIMEOUT_MS = 20000;
  const HEADER = "kerolox-refresh";

  function keyOf(node) {
    return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "";
  }

  function fits(old, fresh) {
    return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
  }

  function changeAttributes(old, fresh) {
    for (const each of Array.from(old.attributes)) {
      // What somebody has opened stays open.
      if (!fresh.hasAttribute(each.name) && each.name !== "open") old.removeAttribute(each.name);
    }
    for (const each of fresh.attributes) {
      if (old.getAttribute(each.name) !== each.value && each.name !== "open") old.setAttribute(each.name, each.value);
    }
  }

  function changeChildren(old, fresh) {
    const wanted = new Set(Array.from(fresh.childNodes, keyOf).filter(Boolean));
    const keyed = new Map();
    for (const child of Array.from(old.childNodes)) {
      const key = keyOf(child);
      if (key && !wanted.has(key)) child.remove();
      else if (key) keyed.set(key, child);
    }
    let place = old.firstChild;
    for (const child of Array.from(fresh.childNodes)) {
      const known = keyed.get(keyOf(child));
      keyed.delete(keyOf(child));
      let match = known && fits(known, child) ? known : null;
      if (!match && place && !keyOf(place) && fits(place, child)) match = place;
      if (match && match === place) place = place.nextSibling;
      else if (match) old.insertBefore(match, place);
      if (match) change(match, child);
      else old.insertBefore(document.importNode(child, true), place);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  function change(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    // Charts draw themselves, and what somebody has typed is theirs.
    if (old.matches("[data-chart], input, select, textarea")) return;
    changeAttributes(old, fresh);
    changeChildren(old, fresh);
  }

  function regions() {
    return Array.from(document.querySelectorAll("[data-refresh]"));
  }

  // Text that is being selected must not change under the pointer.
  function isSelecting() {
    const selection = getSelection();
    return !!selection && !selection.isCollapsed && regions().some((each) => selection.containsNode(each, true));
  }

  function clock() {
    return new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hour12: false, timeZone: document.body.dataset.zone }).format(new Date());
  }

  document.addEventListener("DOMContentLoaded", function () {
    const bar = document.querySelector("[data-live]");
    if (!bar || !regions().length) return;
    const text = bar.querySelector("[data-live-text]");
    const button = bar.querySelector("button");
    let last = clock();
    let isPaused = false;
    let isBusy = false;
    let timer;

    function say(message, isBad) {
      text.textContent = message;
      bar.classList.toggle("bad", isBad);
    }

    function plan() {
      clearTimeout(timer);
      const seconds = Math.min(...regions().map((each) => Number(each.dataset.refresh)));
      if (!isPaused && Number.isFinite(seconds)) timer = setTimeout(refresh, seconds * 1000);
    }

    async function fetched() {
      const version = regions().map((each) => each.dataset.version || "").join("");
      const headers = { [HEADER]: "1" };
      if (version) headers["if-none-match"] = version;
      const address = location.href;
      const answer = await fetch(address, { headers: headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
      // The session has ended, and the answer is the login page.
      if (answer.redirected) location.reload();
      if (answer.status === 304 || answer.redirected) return null;
      if (!answer.ok) throw new Error("the console answers " + answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      return address === location.href ? fresh : null;
    }

    async function refresh() {
      if (isBusy || isPaused) return;
      if (document.hidden || isSelecting()) {
        say("Waits, since " + last, false);
        plan();
        return;
      }
      isBusy = true;
      try {
        const fresh = await fetched();
        const focused = document.activeElement;
        if (fresh && !isPaused && !isSelecting()) {
          for (const region of regions()) {
            const other = fresh.getElementById(region.id);
            if (other) change(region, other);
          }
        }
        if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
        last = clock();
        say("Updated " + last, false);
      } catch (error) {
        const why = error instanceof TypeError ? "the console does not answer" : error.message;
        say("Not updated since " + last + ": " + why, true);
      } finally {
        isBusy = false;
        plan();
      }
    }

    button.addEventListener("click", function () {
      isPaused = !isPaused;
      button.setAttribute("aria-pressed", String(isPaused));
      say(isPaused ? "Frozen at " + last : "Updated " + last, false);
      clearTimeout(timer);
      if (!isPaused) refresh();
    });
    document.addEventListener("visibilitychange", function () {
      if (!document.hidden) refresh();
    });
    say("Updated " + last, false);
    bar.hidden = false;
    plan();
  });
})();

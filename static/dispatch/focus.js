/* Keep the focus of a keyboard user when the control that has it is replaced, removed or hidden: the browser would drop
   it, and with it the user's place on the page.

   The focus goes to the same control if there still is one, or else to the next one from there. A part can name where it
   goes instead (`data-focus`, an id): the panel of a job does, and its new state is announced. Scripts that know a better
   place set the focus themselves, before this one looks. */
(() => {
  "use strict";

  const CONTROLS = "a[href], button, summary, [tabindex='0']";
  const MODIFIERS = new Set(["Alt", "Control", "Meta", "Shift"]);
  let last = null; // what had the focus
  let isByPointer = false; // whether the pointer was used last, and not a key

  function canFocus(one) {
    return Boolean(one?.isConnected) && !one.disabled && !one.closest("[inert]") && one.checkVisibility({ visibilityProperty: true });
  }

  /* The place from which a control was removed, as [the element around it, what is before it]. */
  function placeOf(control, records) {
    const added = new Set(records.flatMap((record) => [...record.addedNodes]));
    for (let removed = control; ;) {
      const record = records.findLast(({ removedNodes }) => [...removedNodes].some((one) => one.contains(removed)));
      if (!record) return [document.getElementById("main"), null];
      if (record.target.isConnected) {
        let before = record.previousSibling;
        while (before && added.has(before)) before = before.previousSibling;
        return [record.target, before?.isConnected ? before : null];
      }
      removed = record.target;
    }
  }

  /* A part that has replaced one around the control keeps its id. */
  function placeById(control) {
    for (let one = control.parentElement; one; one = one.parentElement) {
      const same = one.id && document.getElementById(one.id);
      if (same) return [same, null];
    }
    return null;
  }

  function sameIn(part, control) {
    const { id, localName, dataset } = control;
    const attribute = ["aria-label", "href"].find((name) => control.hasAttribute(name));
    const found = [
      ...(id ? [document.getElementById(id)] : []),
      ...(dataset.open ? document.querySelectorAll(`a.open[data-open="${CSS.escape(dataset.open)}"]`) : []),
      ...(attribute ? part.querySelectorAll(`${localName}[${attribute}="${CSS.escape(control.getAttribute(attribute))}"]`) : []),
    ];
    return found.find(canFocus);
  }

  function nearest(part, before) {
    for (; part && part !== document.body; before = part, part = part.parentElement) {
      const named = part.dataset.focus && document.getElementById(part.dataset.focus);
      if (named) {
        window.Dispatch.say(part.querySelector(".badge")?.textContent.trim() || "");
        return named;
      }
      const controls = [...part.querySelectorAll(CONTROLS)].filter(canFocus);
      const follows = (one) => !before || (!before.contains(one) && before.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
      const next = controls.find(follows) || controls.at(-1);
      if (next) return next;
      if (part.matches("[tabindex]")) return part;
    }
    return document.getElementById("main");
  }

  function restore(records) {
    if (!last || isByPointer || document.activeElement !== document.body) return;
    if (last.isConnected && last.disabled) return; // until it is enabled again or removed
    if (canFocus(last)) {
      const isBack = records.some(({ target, removedNodes }) => target === last || [...removedNodes].some((one) => one.contains(last)));
      if (isBack) last.focus({ preventScroll: true }); // it was moved or enabled; otherwise the user has left it
      return;
    }
    const [part, before] = last.isConnected ? [last.parentElement, last] : placeById(last) || placeOf(last, records);
    (sameIn(part, last) || nearest(part, before))?.focus({ preventScroll: true });
  }

  window.addEventListener("pointerdown", () => { isByPointer = true; }, true);
  window.addEventListener("keydown", ({ key }) => { if (!MODIFIERS.has(key)) isByPointer = false; }, true);
  document.addEventListener("focusin", ({ target }) => { last = target; });
  document.addEventListener("focusout", ({ target, relatedTarget }) => {
    if (relatedTarget) last = null; // until that has the focus
    else setTimeout(() => {
      if (last !== target || document.activeElement !== document.body) return;
      if (canFocus(target)) last = null; // the user has left it
      else if (target.isConnected) restore([]);
    });
  });
  document.addEventListener("DOMContentLoaded", () => {
    new MutationObserver(restore).observe(document.body, { childList: true, subtree: true, attributeFilter: ["disabled"] });
  });
})();

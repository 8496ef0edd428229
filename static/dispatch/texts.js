/* Translate the texts of scripts. The page carries the catalog of its language (`script_texts`); in English there is
   none. `T.get("{name} was paused", { name })` and `T.plural("{count} job", "{count} jobs", count)` mark a text: both
   need literals, which `python -m tests.translations` collects. */
window.T = (() => {
  "use strict";
  let catalog = null;

  function find(key) {
    if (!catalog) {
      const element = document.getElementById("script-texts");
      if (!element && document.readyState === "loading") return undefined;
      catalog = element ? JSON.parse(element.textContent) : {};
    }
    return catalog[key];
  }

  function fill(text, values) {
    return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
  }

  return {
    get: (message, values = {}) => fill(find(message) || message, values),
    plural(one, many, count, values = {}) {
      const forms = find(`${one}\u0000${many}`) || [one, many];
      return fill(forms[count === 1 ? 0 : 1], { count, ...values });
    },
  };
})();

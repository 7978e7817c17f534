// Diagrams without a network: the theme takes a global `mermaid` before it asks a CDN for one. This
// one loads Mermaid from beside itself when a page has a diagram, and no other page pays for it.
// A newer one: `npm pack @mermaid-js/tiny@VERSION`, its dist/mermaid.tiny.js, unchanged.
(() => {
  const source = new URL("mermaid-11.12.0.tiny.js", document.currentScript.src).href;
  let options = {};
  let loading;
  const load = () =>
    (loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = () => {
        globalThis.mermaid.initialize(options);
        resolve(globalThis.mermaid);
      };
      script.onerror = () => reject(new Error(`${source} was not loaded`));
      document.head.append(script);
    }));
  globalThis.mermaid = {
    initialize(given) {
      options = given;
    },
    async render(id, text) {
      return (await load()).render(id, text);
    },
  };
})();

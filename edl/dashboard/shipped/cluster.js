// The cluster's page: puts in what the server tells. The server has made all HTML, escaped.
"use strict";
(() => {
  const link = document.getElementById("link");
  if (!window.EventSource) return;
  let again;

  function live(yes, words) {
    link.textContent = words || (yes ? "live" : "connecting");
    link.classList.toggle("off", !yes);
  }

  function looked(message) {
    live(true);
    for (const [id, html] of Object.entries(JSON.parse(message.data).parts)) document.getElementById(id).innerHTML = html;
  }

  function connect() {
    const source = new EventSource(`events${location.search}`);
    source.addEventListener("look", looked);
    source.addEventListener("away", (message) => live(false, JSON.parse(message.data).words));
    source.addEventListener("error", () => {
      live(false);
      if (source.readyState === EventSource.CLOSED) { clearTimeout(again); again = setTimeout(connect, 1000); }
    });
  }
  connect();
})();

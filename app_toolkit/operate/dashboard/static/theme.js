// Runs before the first paint, so that the page does not flash in the other colours.
try { document.documentElement.dataset.theme = localStorage.getItem("app_toolkit.theme") || ""; } catch { /* storage is off */ }

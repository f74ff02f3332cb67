// Runs before the page is drawn, so that it does not flash in another theme.
const saved = localStorage.getItem("theme");
if (saved === "light" || saved === "dark") document.documentElement.dataset.theme = saved;

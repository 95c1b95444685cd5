// Sets the chosen theme. It must run before the page is first painted, so it is not a module.
try {
  const chosen = localStorage.getItem("midwatch.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage may be forbidden; then the theme of the system is used
}

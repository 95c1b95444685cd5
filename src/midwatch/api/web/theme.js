// Runs before the first paint, so that a chosen theme does not flash. Not a module for that reason.
try {
  const chosen = localStorage.getItem("midwatch.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage may be forbidden; the system's choice holds
}

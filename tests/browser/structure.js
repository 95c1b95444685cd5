// Return the faults in the structure of this page as a list of texts.
() => {
  const seen = (node) => node.checkVisibility({ visibilityProperty: true });
  const name = (node) =>
    (node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent || node.alt || "").trim();
  const wrong = [];
  const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((one) =>
    seen(one) && !one.closest(".page-text"));
  if (headings.filter((one) => one.tagName === "H1").length !== 1) wrong.push("not one h1");
  headings.reduce((before, one) => {
    const level = Number(one.tagName[1]);
    if (level > before + 1) wrong.push(`heading jumps: ${one.textContent}`);
    return level;
  }, 0);
  if (document.querySelectorAll("main").length !== 1) wrong.push("not one main");
  for (const one of document.querySelectorAll("input, select, textarea"))
    if (seen(one) && !one.labels?.length && !one.getAttribute("aria-label")) wrong.push(`no label: ${one.outerHTML}`);
  for (const one of document.querySelectorAll("button, a[href]"))
    if (seen(one) && !name(one)) wrong.push(`no name: ${one.outerHTML}`);
  for (const one of document.querySelectorAll("img:not([alt])")) wrong.push(`no alt: ${one.outerHTML}`);
  for (const one of document.querySelectorAll("div[aria-label]:not([role]), span[aria-label]:not([role])"))
    wrong.push(`a name without a role: ${one.className}`);
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`id twice: ${id}`);
  if (!document.querySelector("[role=status], [role=log], [aria-live=polite]")) wrong.push("nothing is announced");
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth) wrong.push(`scrolls sideways: ${root.scrollWidth} > ${root.clientWidth}`);
  return wrong;
}

// Load a part of a page, and load it again after an event.

import { trackRequests } from "./api.js";
import { createFailure, createSkeleton } from "./parts.js";

const SOON = 250;

/** Return a function that loads a part of the page: at once the first time, later after a short delay. */
export function createReader(body, page, read, draw) {
  body.append(createSkeleton(3));
  const startRequest = trackRequests();
  let waiting = null;
  return () => {
    waiting ??= setTimeout(async () => {
      waiting = null;
      if (!page.isCurrent()) return;
      const { accept } = startRequest();
      try {
        const reply = await read();
        if (page.isCurrent() && accept()) draw(reply);
      } catch (problem) {
        if (page.isCurrent() && accept()) body.replaceChildren(createFailure(problem));
      }
    }, body.querySelector(".skeleton") ? 0 : SOON);
  };
}

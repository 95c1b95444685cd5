import { readFrames } from "/web/stream.js";
import { equal } from "./check.js";

/** Return the frames of a reply whose bytes come in these pieces. */
async function read(...pieces) {
  const body = new ReadableStream({
    start(to) {
      for (const piece of pieces) to.enqueue(typeof piece === "string" ? new TextEncoder().encode(piece) : piece);
      to.close();
    },
  });
  const found = [];
  for await (const frame of readFrames(new Response(body))) found.push(frame);
  return found;
}

export default {
  "a frame has an id, a name and data": async () => {
    equal(await read('id: 7\nevent: task_started\ndata: {"a":1}\n\n'),
      [{ id: 7, name: "task_started", data: { a: 1 } }]);
  },

  "bytes may be split anywhere, also within a character": async () => {
    const bytes = new TextEncoder().encode('id: 1\ndata: {"text":"☕😀"}\n\nevent: x\ndata: [2]\n\n');
    const whole = [{ id: 1, name: "message", data: { text: "☕😀" } }, { id: null, name: "x", data: [2] }];
    for (let size = 1; size < 8; size++) {
      const pieces = [];
      for (let from = 0; from < bytes.length; from += size) pieces.push(bytes.slice(from, from + size));
      equal(await read(...pieces), whole, `pieces of ${size}`);
    }
  },

  "several data lines are joined": async () => equal((await read("data: {\ndata: \ndata:}\n\n"))[0].data, {}),

  "a comment makes no frame": async () => {
    equal(await read(": still here\n\n"), [{ id: null, name: "message", data: null }]);
  },

  "an incomplete frame is dropped": async () => {
    equal(await read("id: 1\ndata: 1\n\nid: 2\ndata: 2\n"), [{ id: 1, name: "message", data: 1 }]);
    equal(await read(), []);
  },
};

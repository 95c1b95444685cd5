// The chat page of one conversation. It lives on the stream of events and keeps nothing; all text goes in as text.

const base = new URL(`${document.documentElement.dataset.base}/`, location.href);
const api = (path) => new URL(`../${path}`, base);
const at = (id) => document.getElementById(id);
const KEYS = {
  ArrowUp: "\x1b[A", ArrowDown: "\x1b[B", ArrowRight: "\x1b[C", ArrowLeft: "\x1b[D", Escape: "\x1b", Tab: "\t",
  Enter: "\r", Backspace: "\x7f",
};
let stable = false;

function show({ id, role, message }) {
  let entry = at(`m${id}`);
  if (!entry) {
    entry = document.createElement("article");
    entry.id = `m${id}`;
    entry.className = role;
    entry.append(document.createElement("pre"));
    at("log").append(entry);
  }
  const below = at("log").scrollHeight - at("log").scrollTop - at("log").clientHeight < 80;
  entry.firstChild.textContent = message;
  entry.hidden = !message.trim();
  if (below) at("log").scrollTop = at("log").scrollHeight;
}

function become(status) {
  stable = status === "stable";
  at("status").textContent = { stable: "waits for you", running: "works" }[status] ?? status;
  at("send").disabled = !stable && !at("keys").checked;
}

function complain(text) {
  at("trouble").textContent = text;
  at("trouble").hidden = !text;
}

function follow() {
  const stream = new EventSource(api("events"));
  stream.addEventListener("open", () => at("log").replaceChildren());
  stream.addEventListener("message_update", (told) => show(JSON.parse(told.data)));
  stream.addEventListener("status_change", (told) => {
    const { status, agent_type } = JSON.parse(told.data);
    at("agent").textContent = agent_type;
    become(status);
  });
  stream.addEventListener("agent_error", (told) => complain(JSON.parse(told.data).message));
  stream.addEventListener("error", () => {
    become("connecting");
    stream.close();
    setTimeout(follow, 3000);
  });
}

async function ask(path, options) {
  complain("");
  try {
    const reply = await fetch(api(path), { method: "POST", ...options });
    const told = await reply.json().catch(() => ({}));
    if (reply.ok) return told;
    complain([told.detail, ...(told.errors ?? []).map((error) => error.message)].filter(Boolean).join(": "));
  } catch {
    complain("The server cannot be reached.");
  }
  return null;
}

const send = (content, type) =>
  ask("message", { headers: { "content-type": "application/json" }, body: JSON.stringify({ content, type }) });

let typed = Promise.resolve();
/** Keys arrive in the order they were pressed in. */
const press = (keys) => {
  typed = typed.then(() => send(keys, "raw"));
};

async function submit() {
  const text = at("text").value;
  if (!text.trim() || !stable) return;
  at("text").value = "";
  if (!(await send(text, "user"))) at("text").value = [text, at("text").value].filter(Boolean).join("\n"); // it may be written in again
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!at("keys").checked) submit();
});

at("text").addEventListener("keydown", (event) => {
  if (!at("keys").checked) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
    return;
  }
  const letter = event.ctrlKey && /^[a-z]$/i.test(event.key) && String.fromCharCode(event.key.toLowerCase().charCodeAt(0) - 96);
  const keys = letter || KEYS[event.key] || (event.key.length === 1 && !event.ctrlKey && !event.metaKey && event.key);
  if (keys) {
    event.preventDefault();
    press(keys);
  }
});

at("keys").addEventListener("change", () => become(stable ? "stable" : "running"));

at("file").addEventListener("change", async () => {
  const [file] = at("file").files;
  at("file").value = "";
  if (!file) return;
  const body = new FormData();
  body.append("file", file);
  const kept = await ask("upload", { body });
  if (kept) at("text").value = `${at("text").value.trimEnd()} @"${kept.filePath}"`.trimStart();
});

follow();

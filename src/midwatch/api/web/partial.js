// Text that is being written, put together from pieces with offsets. A piece that does not fit asks for the whole.

/** `missing()` is called when a piece was lost; answer it with `reset`. Offsets count characters, not UTF-16 units. */
export class Partial {
  id = null;
  text = "";
  #length = 0;

  constructor(missing = () => {}) {
    this.missing = missing;
  }

  reset(id, text) {
    this.id = id;
    this.text = text ?? "";
    this.#length = count(this.text);
  }

  /** The whole as the server tells it. What it says may be older than what is here. Returns whether the text
   * changed. */
  take({ message_id: id, text }) {
    if (id === this.id && this.text.startsWith(text)) return false;
    this.reset(id, text);
    return true;
  }

  /** Returns whether the text changed. */
  add({ message_id: id, offset, text }) {
    if (id !== this.id) {
      if (offset > 0) { this.missing(); return false; }
      this.reset(id, "");
    }
    if (offset > this.#length) { this.missing(); return false; }
    const fresh = offset === this.#length ? text : Array.from(text).slice(this.#length - offset).join("");
    if (!fresh) return false;
    this.text += fresh;
    this.#length += count(fresh);
    return true;
  }
}

function count(text) {
  let pairs = 0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit >= 0xd800 && unit < 0xdc00) pairs++;
  }
  return text.length - pairs;
}

/** Show growing text by appending to one text node; a reader at the end stays at the end. */
export function grow(node, text, scroller = null) {
  const atEnd = scroller && scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
  const shown = node.firstChild;
  if (shown?.nodeType === Node.TEXT_NODE && node.childNodes.length === 1 && text.startsWith(shown.data)) {
    shown.appendData(text.slice(shown.data.length));
  } else {
    node.textContent = text;
  }
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
}

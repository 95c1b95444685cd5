// Unfinished text of an agent, joined from pieces with offsets. When a piece is missing, the whole text is loaded.

/** Calls `missing()` when a piece was lost; then pass the whole text to `replace`. Offsets count characters, not UTF-16
 * units. */
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
    this.#length = countCharacters(this.text);
  }

  /** Use the whole text from the server, unless the text here is newer. Returns whether the text changed. */
  replace({ message_id: id, text }) {
    if (id === this.id && this.text.startsWith(text)) return false;
    this.reset(id, text);
    return true;
  }

  /** Add a piece. Returns whether the text changed. */
  add({ message_id: id, offset, text }) {
    if (id !== this.id) {
      if (offset > 0) { this.missing(); return false; }
      this.reset(id, "");
    }
    if (offset > this.#length) { this.missing(); return false; }
    const fresh = offset === this.#length ? text : Array.from(text).slice(this.#length - offset).join("");
    if (!fresh) return false;
    this.text += fresh;
    this.#length += countCharacters(fresh);
    return true;
  }
}

function countCharacters(text) {
  let pairs = 0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit >= 0xd800 && unit < 0xdc00) pairs++;
  }
  return text.length - pairs;
}

/** Show growing text by appending to one text node, which keeps a selection in it. */
export function grow(node, text) {
  const textNode = node.firstChild;
  if (textNode?.nodeType === Node.TEXT_NODE && node.childNodes.length === 1 && text.startsWith(textNode.data)) {
    textNode.appendData(text.slice(textNode.data.length));
  } else {
    node.textContent = text;
  }
}

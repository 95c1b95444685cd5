// A new automation, or changes to one: the prompt, and when; everything else has a default.

import { asking, get, patch, post, query } from "../api.js";
import { onward } from "../app.js";
import { desk } from "../desk.js";
import { h, say, wishKey } from "../dom.js";
import { act, beginAt, empty, field, pageHead, showProblem } from "../parts.js";
import { agentPicker, directoryPicker } from "../picker.js";
import { nameOf } from "../automation-parts.js";
import { span } from "../time.js";

const SHOWN = 5;
const KINDS = {
  every: {
    name: "Every", label: "Interval", placeholder: "such as 90m, 24h or 7d",
    hint: "At least a minute. It keeps its rhythm over restarts.", preset: "24h",
  },
  cron: {
    name: "Calendar", label: "Cron expression", placeholder: "minute hour day month weekday",
    hint: "Five fields, such as 0 9 * * 1-5, or @hourly, @daily, @weekly, @monthly.", preset: "0 9 * * *",
  },
  at: {
    name: "Once", label: "Time", placeholder: "such as tomorrow 09:00",
    hint: "2026-03-29T09:00, in 20m, 09:00, tomorrow 09:00 or fri 09:00.", preset: "in 1h",
  },
};
const MISSED = [
  ["once_within", "make up for it once, if it is not too long ago"], ["once", "make up for it once, however late"],
  ["skip", "leave it out"],
];

export default function create(main, page) {
  page.setTitle("New automation");
  return automationForm(main, page, null);
}

/** The form for a new one, or for `one`. */
export async function automationForm(main, page, one) {
  const title = one ? `Edit ${nameOf(one)}` : "New automation";
  page.setTitle(title);
  if (!desk.may.act)
    return main.append(pageHead(title),
      h("section.panel",
        empty("You may only look",
          "Your role is viewer. Ask the owner for a token with the role operator to make automations.")));
  const input = (name, value, more) => h("input", { name, value: value ?? "", autocomplete: "off", ...more });
  const prompt = h("textarea", {
    name: "prompt", rows: 6, required: true, value: one?.prompt ?? page.search.get("prompt") ?? "",
    placeholder: "What is to be done each time? {{date}} and {{time}} stand for the moment of the run.",
    "data-slash": "",
  });
  const times = schedule(one, page);
  const button = h("button.primary", { type: "submit" }, one ? "Save" : "Make it");
  const agent = agentPicker(one?.agent ?? page.search.get("agent") ?? "");
  const form = h("form.form", { noValidate: true },
    field("Prompt", prompt),
    h("div.form-row", field("Agent", agent), field("Directory", directoryPicker(one?.workdir ?? ""))),
    times.node,
    h("details", h("summary", "More"),
      h("div.form-row.more-fields",
        field("Title", input("title", one?.title, { maxLength: 200, placeholder: "its prompt" }),
          "What it is called in lists."),
        field("Most runs", input("max_runs", String(one?.max_runs ?? 0), { type: "number", min: 0, class: "num" }),
          "It pauses after that many; 0 for no limit."),
        field("Missed runs",
          h("select", { name: "missed" },
            MISSED.map(([value, text]) =>
              h("option", { value, selected: value === (one?.missed ?? "once_within") }, text))),
          "When nothing ran at its time."),
        field("Not too long ago", input("missed_window", one ? span(one.missed_window) : "12h"),
          "How late a missed run is made up for."),
        field("Timeout",
          input("timeout", one?.timeout_seconds ? span(one.timeout_seconds) : "",
            { placeholder: "the agent's own; such as 10m" }),
          "A run fails when it takes longer."),
        field("Quiet token", input("quiet", one?.quiet, { placeholder: "none; such as NOTHING" }),
          "A reply that is just this is not delivered."),
        field("Tell", input("route", one?.route, { placeholder: "the default; such as console or phone" }),
          "The channel that hears of its runs.")),
      h("label.check.fresh", h("input", { type: "checkbox", name: "fresh", checked: one?.fresh ?? false }),
        "Fresh: each run begins a conversation of its own")),
    h("div.form-buttons", button, one ? h("a.button.quiet", { href: `/automations/${one.id}` }, "Back") : null,
      h("span.hint", h("kbd", "Ctrl"), " ", h("kbd", "Enter"), " submits from anywhere in the form")));
  await agent.ready.catch(() => {});
  const first = values(form);
  const key = wishKey();
  const send = () => act(button, async () => {
    const said = values(form);
    if (!said.prompt.trim()) return showProblem(form, { field: "prompt", message: "Write what is to be done." });
    const lead = onward();
    try {
      const wish = one ? changed(first, said) : made(said);
      if (one && !Object.keys(wish).length) return lead(`/automations/${one.id}`);
      const kept = one
        ? await patch(`/automations/${one.id}`, { ...wish, revision: one.revision })
        : await post("/automations", wish, { key });
      return lead(`/automations/${kept.id}`);
    } catch (problem) {
      return showProblem(form,
        ["at", "every", "cron"].includes(problem.field)
          ? { ...problem, message: problem.message, field: "times" }
          : problem);
    }
  });
  form.addEventListener("submit", (sent) => { sent.preventDefault(); send(); });
  form.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) { pressed.preventDefault(); send(); }
  });
  if (!page.isShown()) return undefined;
  main.append(pageHead(title), form);
  times.preview();
  return beginAt(prompt);
}

/** What is filled in; numbers as numbers, marks as true or false. */
function values(form) {
  const said = Object.fromEntries(new FormData(form));
  return { ...said, max_runs: Number(said.max_runs) || 0, fresh: form.elements.fresh.checked };
}

const timesOf = ({ kind, times, zone }) => ({ [kind]: times.trim(), ...(zone.trim() ? { zone: zone.trim() } : {}) });

function made(said) {
  const { kind, times, zone, ...rest } = said;
  return {
    ...timesOf(said),
    ...Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== "" && value !== false)),
  };
}

/** Only what differs, so that nothing else is touched. An emptied field is nothing. */
function changed(first, said) {
  const { kind, times, zone, ...rest } = said;
  const moved = ["kind", "times", "zone"].some((name) => first[name] !== said[name]);
  const differs = Object.entries(rest)
    .filter(([name, value]) => first[name] !== value)
    .map(([name, value]) => [name, value === "" && name !== "title" ? null : value]);
  return { ...(moved ? timesOf(said) : {}), ...Object.fromEntries(differs) };
}

/** Kind, times and zone, with the next runs as they are typed. */
function schedule(one, page) {
  const old = one?.schedule ?? {};
  const begun = Object.keys(KINDS).find((kind) => old[kind] !== undefined) ?? "cron";
  const kind = h("input", { type: "hidden", name: "kind", value: begun });
  const said = { every: old.every ? span(old.every) : null, cron: old.cron, at: old.at };
  const text = h("input.mono",
    { name: "times", value: said[begun] ?? KINDS[begun].preset, autocomplete: "off", spellcheck: false });
  const zone = h("input", {
    name: "zone", value: old.zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "", autocomplete: "off",
    spellcheck: false, placeholder: "the server's",
  });
  zone.setAttribute("list", "zone-names");
  const zones = h("datalist", { id: "zone-names" },
    (Intl.supportedValuesOf?.("timeZone") ?? []).map((name) => h("option", { value: name })));
  const place = field("", text, "");
  const label = place.querySelector("label");
  const hint = h("p.hint");
  text.after(hint);
  const words = h("p.preview-when");
  const list = h("ol.times");
  const shown = h("div.preview", { role: "status", "aria-label": "Next runs" }, words, list);
  const typed = { ...said };
  const choose = (name) => {
    typed[kind.value] = text.value;
    kind.value = name;
    draw(typed[name] ?? KINDS[name].preset);
    preview();
  };
  const kinds = h("div.segments", { role: "group", "aria-label": "Kind of schedule" },
    Object.entries(KINDS).map(([name, { name: shownName }]) =>
      h("button", { type: "button", data: { kind: name }, onclick: () => choose(name) }, shownName)));
  const draw = (value) => {
    const { label: name, placeholder, hint: about } = KINDS[kind.value];
    say(label, name);
    say(hint, about);
    text.placeholder = placeholder;
    text.value = value;
    for (const segment of kinds.children)
      segment.setAttribute("aria-pressed", String(segment.dataset.kind === kind.value));
  };
  const ask = asking();
  const preview = async () => {
    const { isLast } = ask();
    const wish = text.value.trim()
      ? query({ [kind.value]: text.value.trim(), zone: zone.value.trim(), count: SHOWN })
      : null;
    const found = wish
      ? await get(`/schedules/preview${wish}`).catch((problem) => ({ problem }))
      : { when: "Say when.", next_runs: [] };
    if (!isLast() || !page.isShown()) return;
    words.classList.toggle("bad-text", Boolean(found.problem));
    say(words,
      found.problem ? found.problem.message
        : found.next_runs.length || !wish ? found.when
        : `${found.when}: that has passed already`);
    list.replaceChildren(...(found.next_runs ?? []).map((at) => h("li", h("time.num", { dateTime: at }, inZone(at)))));
  };
  let timer = null;
  const soon = () => { clearTimeout(timer); timer = setTimeout(preview, 300); };
  text.addEventListener("input", soon);
  zone.addEventListener("input", soon);
  page.whenLeft(() => clearTimeout(timer));
  draw(text.value);
  const node = h("fieldset.when-fields", h("legend", "When"), kind, kinds,
    h("div.form-row", h("div.stack", place, field("Zone", zone)), shown), zones);
  return { node, preview };
}

/** A moment as it is in its zone: 2026-03-29T09:00:00+02:00 as Sun 29 Mar 2026, 09:00 (+02:00). */
function inZone(at) {
  const [, date, time, offset] = /^(.*)T(\d\d:\d\d(?::(?!00)\d\d)?)[^+-]*(Z|[+-].*)?$/.exec(at);
  const day = new Intl.DateTimeFormat(undefined, {
    weekday: "short", day: "numeric", month: "short", year: "numeric", timeZone: "UTC",
  }).format(new Date(`${date}T00:00:00Z`));
  return `${day}, ${time} (${offset ?? "Z"})`;
}

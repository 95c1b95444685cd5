// The form for a new or changed automation: prompt and schedule; everything else has a default.

import { buildQuery, get, patch, post, trackRequests } from "../api.js";
import { createNavigator } from "../app.js";
import { createBudgetFields, gatherBudget } from "../budget.js";
import { desk } from "../desk.js";
import { createRequestKey, h, setText } from "../dom.js";
import {
  createField, createFormButtons, createPageHead, createSegments, focusFirst, handleSubmit, showProblem, showReadOnly,
  submitWithKey,
} from "../parts.js";
import { createAgentPicker, createDirectoryPicker, createNoticesPicker } from "../picker.js";
import { getName } from "../automation-parts.js";
import { formatInterval } from "../time.js";
import { createWebhookFields, showWebhooks, takeWebhook } from "../trigger-parts.js";

const PREVIEW_COUNT = 5;
const KINDS = {
  every: {
    name: "Every", label: "Interval", placeholder: "e.g. 90m, 24h or 7d",
    hint: "At least one minute. A restart does not change the rhythm.", preset: "24h",
  },
  cron: {
    name: "Calendar", label: "Cron expression", placeholder: "minute hour day month weekday",
    hint: "Five fields, for example 0 9 * * 1-5, or @hourly, @daily, @weekly, @monthly.", preset: "0 9 * * *",
  },
  at: {
    name: "Once", label: "Time", placeholder: "e.g. tomorrow 09:00",
    hint: "For example 2026-03-29T09:00, in 20m, 09:00, tomorrow 09:00 or fri 09:00.", preset: "in 1h",
  },
  none: { name: "No time", label: "Time", placeholder: "", hint: "Only its triggers start a run.", preset: "" },
};
const OVERLAPS = [
  ["", "skip the due run; a firing waits"],
  ["skip", "skip the due run"], ["queue", "let one due run wait"], ["replace", "cancel the open run and start"],
];
const LISTS = ["days_off", "quiet_hours"];
const MISSED = [
  ["once_within", "run once, unless it is too late"], ["once", "run once, however late"], ["skip", "skip"],
];

export default function renderNewAutomation(main, page) {
  page.setTitle("New automation");
  return renderAutomationForm(main, page, null);
}

/** Show the form for a new automation, or for changes to the given one. */
export async function renderAutomationForm(main, page, automation) {
  const title = automation ? `Edit ${getName(automation)}` : "New automation";
  page.setTitle(title);
  if (!desk.may.act) return showReadOnly(main, title, "create automations");
  const input = (name, value, more) => h("input", { name, value: value ?? "", autocomplete: "off", ...more });
  const prompt = h("textarea", {
    name: "prompt", rows: 6, required: true, value: automation?.prompt ?? page.search.get("prompt") ?? "",
    placeholder: "What should the agent do each time? {{date}} and {{time}} are replaced by the time of the run.",
    "data-slash": "",
  });
  const times = createSchedule(automation, page);
  const button = h("button.primary", { type: "submit" }, automation ? "Save" : "Create automation");
  const agent = createAgentPicker(automation?.agent ?? page.search.get("agent") ?? "");
  const form = h("form.form", { noValidate: true },
    createField("Prompt", prompt),
    h("div.form-row", createField("Agent", agent),
      createField("Directory", createDirectoryPicker(automation?.workdir ?? ""))),
    times.node,
    createWebhookFields(),
    createBudgetFields({
      about: "For each run and all work that grows out of it.", empty: "agent default", limits: automation?.budget,
      mode: automation?.on_budget,
    }),
    h("details", h("summary", "More options"),
      h("div.form-row.more-fields",
        createField("Title", input("title", automation?.title, { maxLength: 200, placeholder: "the prompt" }),
          "The name in lists."),
        createField("Name", input("name", automation?.name, { maxLength: 60, placeholder: "none; e.g. brief" }),
          "A unique short name, for commands."),
        createField("Tags", input("tags", automation?.tags.join(", "), { placeholder: "none; e.g. daily, ops" }),
          "Words to find it by, with commas between them; its runs have them, too."),
        createField("Maximum runs", input("max_runs", String(automation?.max_runs ?? 0),
          { type: "number", min: 0, class: "num" }),
          "The automation pauses after this many runs. 0 means no limit."),
        createField("Missed runs",
          h("select", { name: "missed" },
            MISSED.map(([value, text]) =>
              h("option", { value, selected: value === (automation?.missed ?? "once_within") }, text))),
          "What happens if the server was not running at the scheduled time."),
        createField("Too late after", input("missed_window",
          automation ? formatInterval(automation.missed_window) : "12h"),
          "A missed run is skipped when it would start later than this."),
        createField("If a run is still open",
          h("select", { name: "overlap" },
            OVERLAPS.map(([value, text]) =>
              h("option", { value, selected: value === (automation?.overlap ?? "") }, text))),
          "What happens to a run that is due while the last one is open."),
        createField("Days off", input("days_off", automation?.days_off.join(", "),
          { placeholder: "none; e.g. sat, sun, 12-25" }),
          "No run starts on these days: dates, ranges, weekdays or calendars of the settings."),
        createField("Quiet hours", input("quiet_hours", automation?.quiet_hours.join(", "),
          { placeholder: "none; e.g. 22:00-07:00" }),
          "Runs that are due in these hours start once, at their end."),
        createField("Timeout",
          input("timeout", automation?.timeout_seconds ? formatInterval(automation.timeout_seconds) : "",
            { placeholder: "agent default; e.g. 10m" }),
          "A run that takes longer fails."),
        createField("Only if", input("when", automation?.when_command,
          { placeholder: "none; e.g. test -s inbox", class: "mono", spellcheck: false }),
          "A command that runs first. Exit status 0 starts the run, 1 skips it."),
        createField("For at most", input("when_timeout", formatInterval(automation?.when_timeout ?? 60)),
          "How long this command may take."),
        createField("Earlier results", input("history", String(automation?.history ?? 0),
          { type: "number", min: 0, max: 10, class: "num" }),
          "How many results of the last runs the prompt contains."),
        createField("Variables", h("textarea.mono", {
          name: "env", rows: 2, spellcheck: false, value: formatEnv(automation?.env), placeholder: "NAME=value",
        }), "One per line, for the programs of the runs. *** keeps a secret value."),
        createField("Quiet token", input("quiet", automation?.quiet, { placeholder: "none; e.g. NOTHING" }),
          "A reply that is only this text is not sent. A pattern: /^(OK|nothing new)/"),
        createField("Notify", input("route", automation?.route,
          { placeholder: "default; e.g. console or phone team:#ops" }),
          "The channels that get notices about the runs, with blanks between them."),
        createField("Notices", createNoticesPicker(automation?.notices ?? ""),
          "Which notices are sent. A digest is one message with all results.")),
      h("label.check.fresh", h("input", { type: "checkbox", name: "fresh", checked: automation?.fresh ?? false }),
        "Start a new session for each run")),
    createFormButtons(button,
      automation ? h("a.button.quiet", { href: `/automations/${automation.id}` }, "Back") : null));
  await agent.ready.catch(() => {});
  const first = readForm(form);
  takeWebhook(first);
  const key = createRequestKey();
  handleSubmit(form, button, async () => {
    const values = readForm(form);
    if (!values.prompt.trim()) return showProblem(form, { field: "prompt", message: "Enter a prompt." });
    const navigate = createNavigator();
    const webhook = takeWebhook(values);
    const body = automation ? collectChanges(first, values) : buildBody(values);
    if (webhook) body.triggers = [...(automation?.triggers ?? []), webhook];
    if (automation && !Object.keys(body).length) return navigate(`/automations/${automation.id}`);
    const request = automation
      ? patch(`/automations/${automation.id}`, { ...body, revision: automation.revision })
      : post("/automations", body, { key });
    const saved = await request.catch((problem) => {
      if (["at", "every", "cron"].includes(problem.field)) problem.field = "times";
      throw problem;
    });
    return saved.webhooks ? showWebhooks(main, saved) : navigate(`/automations/${saved.id}`);
  });
  submitWithKey(form);
  if (!page.isCurrent()) return undefined;
  main.append(createPageHead(title), form);
  for (const name of LISTS) form.elements[name].addEventListener("input", times.soon);
  times.preview();
  return focusFirst(prompt);
}

const splitList = (text) => text.split(",").map((item) => item.trim()).filter(Boolean);

/** Return the values of the form, with numbers as numbers and checkboxes as booleans. */
function readForm(form) {
  const values = gatherBudget(Object.fromEntries(new FormData(form)));
  for (const name of [...LISTS, "tags"]) values[name] = splitList(values[name]);
  const fresh = form.elements.fresh.checked;
  const [most, history] = [Number(values.max_runs) || 0, Number(values.history) || 0];
  return { ...values, max_runs: most, history, env: parseEnv(values.env), fresh };
}

const formatEnv = (env) => Object.entries(env ?? {}).map(([name, value]) => `${name}=${value}`).join("\n");

/** Return the variables in the lines of a text; null if there are none. */
function parseEnv(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const pairs = lines.map((line) => [line.split("=", 1)[0].trim(), line.slice(line.split("=", 1)[0].length + 1)]);
  return lines.length ? Object.fromEntries(pairs) : null;
}

/** Return a change of variables: an empty value removes those that are gone. */
const changeEnv = (before, after) =>
  after && { ...Object.fromEntries(Object.keys(before ?? {}).map((name) => [name, ""])), ...after };

/** Split the values of the form into the schedule for the request and the rest. */
function splitValues({ kind, times, zone, ...rest }) {
  const moment = kind === "none" ? {} : { [kind]: times.trim() };
  return [{ ...moment, ...(zone.trim() ? { zone: zone.trim() } : {}) }, rest];
}

function buildBody(values) {
  const [schedule, rest] = splitValues(values);
  return {
    ...schedule,
    ...Object.fromEntries(
      Object.entries(rest).filter(([, value]) => !["", false, null].includes(value) && value.length !== 0)),
  };
}

/** Return only what differs, so that nothing else changes. An emptied field becomes null. */
function collectChanges(first, values) {
  const [schedule, rest] = splitValues(values);
  const isMoved = ["kind", "times", "zone"].some((name) => first[name] !== values[name]);
  const changes = Object.entries(rest)
    .filter(([name, value]) => JSON.stringify(first[name]) !== JSON.stringify(value))
    .map(([name, value]) => [name, value === "" && name !== "title" ? null : value])
    .map(([name, value]) => [name, name === "env" ? changeEnv(first.env, value) : value]);
  return { ...(isMoved ? schedule : {}), ...Object.fromEntries(changes) };
}

/** Create the fields of the schedule, with a preview of the next runs. */
function createSchedule(automation, page) {
  const old = automation?.schedule ?? {};
  const firstKind = Object.keys(KINDS).find((kind) => (old[kind] ?? null) !== null) ?? (automation ? "none" : "cron");
  const kind = h("input", { type: "hidden", name: "kind", value: firstKind });
  const typed = { every: old.every ? formatInterval(old.every) : null, cron: old.cron, at: old.at };
  const text = h("input.mono",
    { name: "times", value: typed[firstKind] ?? KINDS[firstKind].preset, autocomplete: "off", spellcheck: false });
  const zone = h("input", {
    name: "zone", value: old.zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "", autocomplete: "off",
    spellcheck: false, placeholder: "time zone of the server",
  });
  zone.setAttribute("list", "zone-names");
  const zones = h("datalist", { id: "zone-names" },
    (Intl.supportedValuesOf?.("timeZone") ?? []).map((name) => h("option", { value: name })));
  const place = createField("", text, "");
  const label = place.querySelector("label");
  const hint = h("p.hint");
  text.after(hint);
  const words = h("p.preview-when");
  const list = h("ol.times");
  const previewBox = h("div.preview", { role: "status", "aria-label": "Next runs" }, words, list);
  const choose = (name) => {
    typed[kind.value] = text.value;
    kind.value = name;
    draw(typed[name] ?? KINDS[name].preset);
    preview();
  };
  const choices = Object.entries(KINDS).map(([name, { name: text }]) => [name, text]);
  const kinds = createSegments("Kind of schedule", choices, firstKind, choose);
  const draw = (value) => {
    const { label: name, placeholder, hint: about } = KINDS[kind.value];
    setText(label, name);
    setText(hint, about);
    text.placeholder = placeholder;
    text.value = value;
    text.hidden = kind.value === "none";
  };
  const startRequest = trackRequests();
  const preview = async () => {
    const { isLatest } = startRequest();
    const parameters = text.value.trim()
      ? buildQuery({
        [kind.value]: text.value.trim(), zone: zone.value.trim(), count: PREVIEW_COUNT,
        ...Object.fromEntries(LISTS.map((name) => [name, splitList(text.form?.elements[name]?.value ?? "")])),
      })
      : null;
    const reply = parameters
      ? await get(`/schedules/preview${parameters}`).catch((problem) => ({ problem }))
      : { when: kind.value === "none" ? "Runs only when a trigger fires." : "Enter a time.", next_runs: [] };
    if (!isLatest() || !page.isCurrent()) return;
    words.classList.toggle("bad-text", Boolean(reply.problem));
    setText(words,
      reply.problem ? reply.problem.message
        : reply.next_runs.length || !parameters ? reply.when
        : `${reply.when}: this time has passed`);
    list.replaceChildren(...(reply.next_runs ??
      []).map((at) => h("li", h("time.num", { dateTime: at }, formatInZone(at)))));
  };
  let timer = null;
  const soon = () => { clearTimeout(timer); timer = setTimeout(preview, 300); };
  text.addEventListener("input", soon);
  zone.addEventListener("input", soon);
  page.onLeave(() => clearTimeout(timer));
  draw(text.value);
  const node = h("fieldset.when-fields", h("legend", "Schedule"), kind, kinds,
    h("div.form-row", h("div.stack", place, createField("Time zone", zone)), previewBox), zones);
  return { node, preview, soon };
}

/** Format a time in its own zone: 2026-03-29T09:00:00+02:00 becomes Sun 29 Mar 2026, 09:00 (+02:00). */
function formatInZone(at) {
  const [, date, time, offset] = /^(.*)T(\d\d:\d\d(?::(?!00)\d\d)?)[^+-]*(Z|[+-].*)?$/.exec(at);
  const day = new Intl.DateTimeFormat(undefined, {
    weekday: "short", day: "numeric", month: "short", year: "numeric", timeZone: "UTC",
  }).format(new Date(`${date}T00:00:00Z`));
  return `${day}, ${time} (${offset ?? "Z"})`;
}

// The slowest recent requests, with the time of each stage.

import { get } from "../api.js";
import { button, children, el, show, text } from "../dom.js";
import { deploymentLink, duration, logsLink, moment, plural, time } from "../format.js";

const LAST = 50;

const STAGES = [
  ["body", "body and pauses", (each) => each.body_s],
  ["queued", "queue", (each) => each.queued_s],
  ["attempts", "failed attempts", (each) => each.attempts.reduce((sum, attempt) => sum + attempt.seconds, 0)],
  ["app", "app", (each) => each.app_s],
  ["response", "response", (each) => each.response_s],
];

export function open(_, query) {
  const name = el("input", { type: "search", id: "slow-name", value: query.get("name") ?? "", placeholder: "APP or APP/DEPLOYMENT" });
  const found = el("span.quiet", { role: "status" });
  const problem = el("p.note", { hidden: true });
  const list = el("ol.slow");
  const empty = el("p.quiet", { hidden: true }, "No request has ended in the last ten minutes.");
  const form = el("form.filters", {}, el("div", {}, el("label", { htmlFor: "slow-name" }, "Deployment"), name), button("Show", () => {}, { type: "submit", className: "primary" }), found);
  const legend = el("ul.legend", { "aria-label": "Stages" }, ...STAGES.map(([key, label]) => el("li", {}, el(`span.key.stage.${key}`), label)));
  const root = el("div.page", {}, el("section.card", { "aria-label": "Slow requests" }, form, legend, problem, empty, list));
  form.addEventListener("submit", (event) => { event.preventDefault(); load(); });
  load();

  async function load() {
    text(found, "loading");
    try {
      const requests = await get("api/slow", { name: name.value.trim(), last: LAST });
      const longest = Math.max(...requests.map((each) => each.seconds - each.response_s), 1e-9);
      children(list, requests.map((each) => row(each, longest)));
      text(found, `${plural(requests.length, "request")} of the last ten minutes, the slowest until its response first`);
      show(problem, false);
      show(empty, requests.length === 0);
    } catch (error) {
      text(found, "");
      text(problem, error.message);
      show(problem, true);
    }
  }

  return { root, title: "Slow requests", update() {} };
}

function row(each, longest) {
  const owner = each.deployment.includes("/") ? el("a", { href: deploymentLink(each.deployment) }, each.deployment) : el("span", {}, each.deployment);
  return el("li", {},
    el("div.line", {},
      el("strong", {}, duration(each.seconds - each.response_s)),
      el("code", {}, `${each.method} ${each.path}`),
      el(`span.tag.${each.outcome === "ok" ? (each.status >= 500 ? "bad" : "none") : "bad"}`, {}, each.kind === "call" ? each.outcome : `${each.status} ${each.outcome === "ok" ? "" : each.outcome}`.trim()),
      owner,
      el("time", { title: moment(each.at) }, time(each.at))),
    bar(each, longest),
    el("p.quiet", {}, stagesOf(each).map(([, label, seconds]) => `${label} ${duration(seconds)}`).join(" · "), " · ",
      each.replica !== "-" ? el("a", { href: logsLink({ replica: each.replica }) }, each.replica) : null, " · ",
      el("a", { href: logsLink({ request_id: each.request_id }) }, "logs of this request")),
    ...each.attempts.map((attempt) => el("p.quiet", {}, `attempt at ${attempt.replica} ended after ${duration(attempt.seconds)}: ${attempt.result}`)),
    each.calls.length ? el("details", {}, el("summary", {}, plural(each.calls.length, "call")), el("ol.slow", {}, ...each.calls.map((call) => row(call, longest)))) : null);
}

const stagesOf = (each) => STAGES.map(([key, label, of]) => [key, label, of(each)]).filter(([, , seconds]) => seconds > 0);

// The stages until the response began, on the scale of the slowest request. What follows may be a long stream.
function bar(each, longest) {
  const track = el("div.stages", { "aria-hidden": "true" });
  for (const [key, label, seconds] of stagesOf(each)) {
    if (key === "response") continue;
    const part = el(`span.stage.${key}`, { title: `${label} ${duration(seconds)}` });
    part.style.width = `${(100 * seconds) / longest}%`;
    track.append(part);
  }
  return track;
}


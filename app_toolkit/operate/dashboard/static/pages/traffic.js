// The applications: their revisions with weights, tags and mirrors, canary releases, splits, and what changes them.

import { button, children, el, show, text } from "../dom.js";
import { age, applicationLink, deploymentLink, duration, exact, main, moment, percent, plural, rate, words } from "../format.js";
import * as actions from "../actions.js";
import { confirm, shareFields } from "../dialogs.js";
import { applicationRow, applications, deploymentRow, kind, numbers, rank, running, state } from "../store.js";
import { table, words as cellWords } from "../table.js";

export function open([name]) {
  return name ? one(name) : all();
}

const revisionsOf = (row) => (row.traffic.length ? row.traffic : [{ revision: row.serving_revision || row.revision, share: 1, planned: 1, tag: null, state: "ready", is_removed: false, mirror: 0 }]);

const goesOn = (release) => Boolean(release) && !release.outcome;

function all() {
  const filter = el("input", { type: "search", id: "filter", placeholder: "Filter by name or status" });
  const found = el("span.quiet", { role: "status" });
  const grid = table({ caption: "Applications", key: (row) => row.name, columns: [
    { label: "Application", value: (row) => row.name, cell: () => { const node = el("a"); return { node, header: true, update(row) { text(node, row.name); node.href = applicationLink(row.name); } }; } },
    { label: "Status", value: (row) => rank(row.status), cell: () => { const node = el("span.pill"); return { node, update(row) { text(node, words(row.status)); node.className = `pill ${kind(row.status)}`; } }; } },
    { label: "Prefix", value: (row) => row.route_prefix ?? "", cell: cellWords((row) => row.route_prefix ?? "no HTTP", "code") },
    { label: "Revision", numeric: true, value: (row) => row.serving_revision, cell: cellWords((row) => String(row.serving_revision || row.revision)) },
    { label: "Traffic", cell: () => { const node = bar(); return { node: node.root, update: (row) => node.update(revisionsOf(row)) }; }, className: "wide" },
    { label: "Canary release", value: (row) => (goesOn(row.canary) ? 0 : 1), cell: cellWords((row) => (goesOn(row.canary) ? `step ${row.canary.step} of ${row.canary.steps.length}` : "–")) },
    { label: "Requests/s", numeric: true, value: (row) => numbers(row.name).rate, cell: cellWords((row) => rate(numbers(row.name).rate)) },
    { label: "p95", numeric: true, value: (row) => numbers(row.name).p95, cell: cellWords((row) => duration(numbers(row.name).p95)) },
  ], empty: "No application is deployed." });
  const root = el("div.page", {}, el("section.card", { "aria-label": "Applications" }, el("div.head", {}, el("label.hidden", { htmlFor: "filter" }, "Filter the applications"), filter, found), grid.root));
  filter.addEventListener("input", update);

  function update() {
    const wanted = filter.value.trim().toLowerCase();
    const rows = applications().filter((row) => row.name === main(row.name) && `${row.name} ${words(row.status)}`.toLowerCase().includes(wanted));
    text(found, plural(rows.length, "application"));
    grid.update(rows);
  }

  return { root, title: "Revisions", update };
}

function one(name) {
  const gone = el("p.note", { hidden: true }, `There is no application ${name}.`);
  const status = el("span.pill");
  const about = el("span.quiet");
  const facts = el("ul.members", { "aria-label": "Facts" });
  const buttons = {
    weights: button("Change weights…", askForWeights, { className: "primary" }),
    promote: button("Promote…", askForPromotion),
    abort: button("Abort…", askForAbort),
    rollback: button("Roll back…", askForRollback),
  };
  const distribution = bar(true);
  const revisions = table({ caption: `Live revisions of ${name}`, key: (row) => String(row.revision), columns: REVISIONS(name) });
  const release = canary(name);
  const splits = el("div");
  const error = el("pre", { tabindex: 0, "aria-label": "Why the last revision has failed" });
  const errorCard = el("section.card.trouble", { "aria-labelledby": "error-title" }, el("div.head", {}, el("h2", { id: "error-title" }, "Why the last revision has failed")), error);
  const members = el("ul.members");
  const root = el("div.page", {},
    el("div.lead", {}, status, about, el("span.spacer"), ...Object.values(buttons)), gone, facts, errorCard,
    el("section.card", { "aria-labelledby": "revisions-title" }, el("div.head", {}, el("h2", { id: "revisions-title" }, "Revisions")), distribution.root, revisions.root),
    release.root, splits,
    el("section.card", { "aria-labelledby": "members-title" }, el("div.head", {}, el("h2", { id: "members-title" }, "Deployments")), members));

  const row = () => applicationRow(name);

  function update() {
    const found = row();
    show(gone, !found);
    for (const each of Object.values(buttons)) show(each, Boolean(found));
    if (!found) return;
    const live = revisionsOf(found);
    text(status, words(found.status));
    status.className = `pill ${kind(found.status)}`;
    text(about, [found.route_prefix ?? "no HTTP", `revision ${found.serving_revision || found.revision}`, plural(live.length, "live revision")].join(" · "));
    const noted = found.facts.map((each) => `${each.name}${each.since === null ? "" : ` since ${moment(each.since)}`}: ${each.text}`);
    show(facts, noted.length > 0);
    if (facts.dataset.said !== noted.join("\n")) {
      facts.dataset.said = noted.join("\n");
      children(facts, noted.map((each) => el("li", {}, each)));
    }
    show(buttons.weights, live.length > 1 && !goesOn(found.canary)); // a release sets the weights itself
    show(buttons.promote, live.length > 1);
    show(buttons.abort, live.length > 1);
    show(buttons.rollback, found.rollback_to !== null);
    distribution.update(live);
    revisions.update(live.map((each, place) => ({ ...each, isMain: place === 0 })));
    release.update(found.canary);
    showSplits(found);
    text(error, found.error ?? "");
    show(errorCard, Boolean(found.error));
    const names = Object.keys(state.tables.deployments).filter((each) => main(each.split("/")[0]) === name).sort();
    const said = names.map((each) => each + deploymentRow(each).status + running(state.tables.deployments[each]) + state.tables.deployments[each].target).join();
    if (members.dataset.said === said) return;
    members.dataset.said = said;
    children(members, names.map((each) => {
      const deployed = deploymentRow(each);
      return el("li", {}, el(`span.dot.${kind(deployed.status)}`), el("a", { href: deploymentLink(each) }, each), el("span.quiet", {}, `${words(deployed.status)}, ${running(deployed)} of ${deployed.target} replicas`));
    }));
  }

  function showSplits(found) {
    const said = JSON.stringify(found.splits);
    if (splits.dataset.said === said) return;
    splits.dataset.said = said;
    show(splits, found.splits.length > 0);
    children(splits, found.splits.map((each) => {
      const shares = Object.entries(each.shares).map(([member, share]) => ({ revision: member, share, mirror: each.mirrors[member] ?? 0 }));
      const drawn = bar(true);
      drawn.update(shares);
      return el("section.card", { "aria-label": `Split ${each.name}` }, el("div.head", {}, el("h2", {}, `Split ${each.name}`), button("Change weights…", () => askForSplit(each))), drawn.root);
    }));
  }

  function askForWeights() {
    const live = revisionsOf(row());
    const fields = shareFields(live.map((each, place) => ({ key: String(each.revision), label: `Revision ${each.revision}${place === 0 ? ", main" : ""}${each.tag ? `, tag ${each.tag}` : ""}`, value: each.planned })));
    confirm({ title: `Weights of ${name}`, question: "Requests follow the new weights at once. A revision without a weight, a tag and a mirror is removed.", fields: fields.rows, label: "Change weights", check: fields.check, action: () => actions.traffic(name, fields.weights()) });
  }

  function askForSplit(each) {
    const fields = shareFields(Object.entries(each.shares).map(([member, value]) => ({ key: member, label: member, value })));
    confirm({ title: `Weights of ${name}/${each.name}`, question: "Calls follow the new weights at once.", fields: fields.rows, label: "Change weights", check: fields.check, action: () => actions.split(name, each.name, fields.weights()) });
  }

  function askForPromotion() {
    const others = revisionsOf(row()).slice(1).filter((each) => !each.is_removed);
    const choice = el("select", { id: "promoted" }, ...others.map((each) => el("option", { value: each.revision }, `Revision ${each.revision}${each.tag ? `, tag ${each.tag}` : ""}`)));
    confirm({ title: `Promote a revision of ${name}`, question: "It gets all requests, and becomes the main revision. The others are removed.", fields: [el("div.field", {}, el("label", { htmlFor: "promoted" }, "Revision"), choice)], label: "Promote", action: () => actions.promote(name, Number(choice.value)) });
  }

  function askForAbort() {
    confirm({ title: `Abort the rollout of ${name}?`, question: "The main revision gets all requests, and the other live revisions are removed.", label: "Abort", danger: true, action: () => actions.abort(name) });
  }

  function askForRollback() {
    const { revision, rollback_to: to } = row();
    confirm({ title: `Roll ${name} back to revision ${to}?`, question: `Revision ${to}, with its code, its options and its numbers of replicas, replaces revision ${revision}. It is the last stable one that differs in more than the numbers of replicas: a scaling alone is not undone. Replicas that are removed finish their requests first.`, label: "Roll back", danger: true, action: () => actions.rollback(name, revision, to) });
  }

  return { root, title: name, crumbs: [["Revisions", "#/traffic"]], update };
}

// A bar with a part for each revision or member.
function bar(named = false) {
  const root = el(`div.shares${named ? ".named" : ""}`);
  let said = "";
  return { root, update(rows) {
    const now = JSON.stringify(rows.map((each) => [each.revision, each.share, each.planned, each.mirror, each.tag]));
    if (now === said) return;
    said = now;
    const shown = rows.filter((each) => each.share > 0);
    children(root, [el("div.track", { role: "img", "aria-label": rows.map((each) => `${each.revision}: ${percent(each.share)}`).join(", ") }, ...shown.map((each) => {
      const part = el(`span.part.p${rows.indexOf(each) % 6}`, { title: `${each.revision}: ${percent(each.share)}` }, each.share > 0.08 ? `${each.revision}` : "");
      part.style.flexGrow = each.share;
      return part;
    })), ...(named ? [el("ul.legend", {}, ...rows.map((each, place) => el("li", {}, el(`span.key.p${place % 6}`), el("span", {}, typeof each.revision === "number" ? `Revision ${each.revision}` : each.revision), el("b", {}, percent(each.share)), each.mirror ? el("span.quiet", {}, `mirrors ${percent(each.mirror)}`) : null)))] : [])]);
  } };
}

const REVISIONS = (name) => {
  const own = (row) => (row.isMain ? name : `${name}@${row.revision}`);
  return [
    { label: "Revision", value: (row) => row.revision, cell: () => { const node = el("span"); return { node, header: true, update: (row) => text(node, `${row.revision}${row.isMain ? " (main)" : ""}`) }; } },
    { label: "Weight", numeric: true, value: (row) => row.share, cell: cellWords((row) => percent(row.share)) },
    { label: "Planned", numeric: true, value: (row) => row.planned, cell: cellWords((row) => percent(row.planned)) },
    { label: "Mirrors", numeric: true, value: (row) => row.mirror, cell: cellWords((row) => (row.mirror ? percent(row.mirror) : "–")) },
    { label: "Tag", value: (row) => row.tag ?? "", cell: cellWords((row) => row.tag ?? "–") },
    { label: "State", value: (row) => row.state, cell: cellWords((row) => row.state) },
    { label: "Requests/s", numeric: true, value: (row) => numbers(own(row)).rate, cell: cellWords((row) => rate(numbers(own(row)).rate)) },
    { label: "p95", numeric: true, value: (row) => numbers(own(row)).p95, cell: cellWords((row) => duration(numbers(own(row)).p95)) },
  ];
};

function canary(name) {
  const steps = el("ol.steps");
  const why = el("p");
  const facts = el("div");
  const pause = button("Pause…", () => {
    const release = state.tables.applications[name].canary;
    confirm({ title: `${release.paused ? "Resume" : "Pause"} the canary release of ${name}?`, question: release.paused ? "It goes on with its present step." : "It stays at its present step until you resume it.", label: release.paused ? "Resume" : "Pause", action: () => actions.pause(name, !release.paused) });
  });
  const title = el("h2", { id: "canary-title" }, "Canary release");
  const root = el("section.card", { "aria-labelledby": "canary-title", hidden: true }, el("div.head", {}, title, pause), steps, why, facts);
  return { root, update(release) {
    show(root, Boolean(release));
    if (!release) return;
    text(title, `Canary release of revision ${release.revision}`);
    show(pause, goesOn(release));
    text(pause, release.paused ? "Resume…" : "Pause…");
    const said = JSON.stringify([release.steps, release.step, release.outcome, release.paused]);
    if (steps.dataset.said !== said) {
      steps.dataset.said = said;
      children(steps, release.steps.map((share, place) => {
        const state = place + 1 < release.step || release.outcome === "promoted" ? "done" : place + 1 === release.step ? (release.outcome ? "failed" : release.paused ? "paused" : "now") : "later";
        return el(`li.${state}`, { "aria-current": state === "now" || state === "paused" ? "step" : undefined }, el("b", {}, `${share} %`), el("span.quiet", {}, { done: "done", failed: release.outcome, paused: "paused", now: "now", later: "later" }[state]));
      }));
    }
    const guards = release.guards.length ? `Guards: ${release.guards.join(", ")}.` : "No guards.";
    text(why, [release.outcome ? `${words(release.outcome)}: ${release.why}` : `${age(release.elapsed_s)} of ${age(release.every_s)} in this step; ${release.why}`, guards].join(". ").replace("..", "."));
    const compared = [["Candidate", release.candidate], ["Main revision", release.baseline]].filter(([, each]) => each);
    show(facts, compared.length > 0);
    children(facts, compared.length ? [el("table", {}, el("caption.hidden", {}, "Requests of this step"), el("thead", {}, el("tr", {}, ...["This step", "Requests", "Errors", "p50", "p95", "p99"].map((label) => el("th", { scope: "col" }, label)))),
      el("tbody", {}, ...compared.map(([label, each]) => el("tr", {}, el("th", { scope: "row" }, label), ...[exact(each.requests), exact(each.errors), ...[each.p50_s, each.p95_s, each.p99_s].map((seconds) => duration(each.requests ? seconds : null))].map((value) => el("td", {}, value))))))] : []);
  } };
}

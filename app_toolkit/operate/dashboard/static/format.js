// Numbers, times and names as people read them.

const NONE = "–";
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function count(value) {
  if (!known(value)) return NONE;
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  return exact(value);
}

export function exact(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : NONE;
}

export function rate(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0";
  return value < 10 ? String(Number(value.toPrecision(2))) : count(value);
}

export function decimal(value) {
  return known(value) ? String(Number(value.toPrecision(3))) : NONE;
}

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds === 0) return "0 ms";
  if (seconds < 0.001) return `${Math.max(seconds * 1e6, 1).toFixed(0)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(seconds < 0.01 ? 2 : 3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  return age(seconds);
}

export function age(seconds) {
  if (!known(seconds)) return NONE;
  const whole = Math.max(Math.round(seconds), 0);
  if (whole < 60) return `${whole} s`;
  if (whole < 3_600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86_400) return `${Math.floor(whole / 3_600)} h ${Math.floor((whole % 3_600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3_600)} h`;
}

export function percent(share) {
  if (!known(share)) return NONE;
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value < 0.01) return "< 0.01 %";
  return `${value >= 10 ? Math.round(value) : Number(value.toPrecision(2))} %`;
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1_000 && unit < units.length - 1) { size /= 1_000; unit += 1; }
  return `${Number(size.toPrecision(3))} ${units[unit]}`;
}

export const time = (at) => clock.format(at * 1_000);
export const moment = (at) => day.format(at * 1_000);
export const words = (status) => String(status ?? "unknown").replaceAll("_", " ");
export const plural = (number, one, many = `${one}s`) => `${exact(number)} ${number === 1 ? one : many}`;

// The name of a proxy has the id of its node, which is long.
export const short = (name) => String(name).replace(/@([0-9a-f]{12})[0-9a-f]{8,}/, "@$1");

export const application = (name) => name.split("/")[0];
export const deployment = (name) => name.slice(name.indexOf("/") + 1);
export const main = (name) => name.split("@")[0];

const path = (...parts) => parts.map(encodeURIComponent).join("/");
export const applicationLink = (name) => `#/traffic/${path(main(name))}`;
export const deploymentLink = (name) => `#/deployments/${path(application(name), deployment(name))}`;
export const logsLink = (query) => `#/logs?${new URLSearchParams(query)}`;

// The requests that change the instance, each as { path, body, done }: the commands of the admin API.

export const scale = (application, deployment, replicas) => ({
  path: "api/scale", body: { deployment: `${application}/${deployment}`, num_replicas: replicas }, done: `${application}/${deployment} is scaled to ${replicas}.`,
});
export const traffic = (application, weights) => ({
  path: "api/set-traffic", body: { application, weights }, done: `The weights of ${application} are changed.`,
});
export const split = (application, name, weights) => ({
  path: "api/set-split", body: { split: `${application}/${name}`, weights }, done: `The weights of ${application}/${name} are changed.`,
});
export const promote = (application, revision) => ({
  path: "api/promote", body: { application, revision }, done: `Revision ${revision} of ${application} gets all requests.`,
});
export const abort = (application) => ({
  path: "api/abort", body: { application }, done: `The main revision of ${application} gets all requests.`,
});
export const pause = (application, paused) => ({
  path: "api/pause-release", body: { application, paused }, done: `The canary release of ${application} is ${paused ? "paused" : "resumed"}.`,
});
// The API refuses it if another client has changed the application since: `revision` is the one that the page shows.
export const rollback = (application, revision, to) => ({
  path: "api/rollback", body: { application, expected: revision, to }, done: `${application} returns to revision ${to}.`,
});

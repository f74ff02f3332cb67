// What the page says about this assistant. Change it for your own.

export const HEADING = "What would you like to know?";
export const ABOUT = "Answers come from the documentation. They survive a reload and a lost connection.";
export const SUGGESTIONS = [
  ["Batch calls", "How does batching work?"],
  ["Survive a failure", "What happens when a replica dies?"],
  ["Follow the load", "How does autoscaling work?"],
  ["Resume a stream", "How does a client resume a stream?"],
];

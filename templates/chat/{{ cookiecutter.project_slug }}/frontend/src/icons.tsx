const PATHS = {
  attach: "M19 11.5l-7.4 7.4a4.6 4.6 0 0 1-6.5-6.5l7.9-7.9a3 3 0 0 1 4.3 4.3l-7.8 7.8a1.5 1.5 0 0 1-2.1-2.1l7-7",
  bad: "M7 14V4H4.5v10zM7 13l4 7.5c1.6 0 2.3-1 2-2.5L12.5 15H18a2 2 0 0 0 2-2.3L18.8 5.7A2 2 0 0 0 16.8 4H7",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v10H9zM5 15V5h10",
  down: "M12 6v12M6.5 12.5 12 18l5.5-5.5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  export: "M12 4v11M7.5 11 12 15.5 16.5 11M5 16v4h14v-4",
  file: "M6 3.5h8l4.5 4.5V20.5H6zM13.5 3.5V8.5H18.5",
  good: "M7 10v10H4.5V10zM7 11l4-7.5c1.6 0 2.3 1 2 2.5L12.5 9H18a2 2 0 0 1 2 2.3l-1.2 7A2 2 0 0 1 16.8 20H7",
  menu: "M4 7h16M4 12h16M4 17h10",
  new: "M12 5v14M5 12h14",
  next: "M9 6l6 6-6 6",
  previous: "M15 6l-6 6 6 6",
  remove: "M5 7h14M10 7V4.5h4V7M7 7l1 12.5h8L17 7M10.5 11v5M13.5 11v5",
  retry: "M5 12a7 7 0 1 1 2 5M5 17.5V13h4.5",
  send: "M12 19V6M6 11.5 12 5.5l6 6",
  stop: "M7.5 7.5h9v9h-9z",
};

export const Icon = ({ name }: { name: keyof typeof PATHS }) => (
  <svg viewBox="0 0 24 24" aria-hidden="true">
    <path d={PATHS[name]} />
  </svg>
);

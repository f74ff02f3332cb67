import { type FormEvent, type ReactNode, useEffect, useId, useRef } from "react";

type DialogProps = { title: string; action: string; isDangerous?: boolean; onAction: () => void; onClose: () => void; children: ReactNode };

// A modal dialog with a form. The browser closes it with Escape and gives the focus back.
export function Dialog({ title, action, isDangerous, onAction, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const { current } = dialog;
    if (!current?.open) current?.showModal();
  }, []);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    onAction();
    dialog.current?.close();
  }

  return (
    <dialog ref={dialog} aria-labelledby={id} onClose={onClose}>
      <form onSubmit={onSubmit}>
        <h2 id={id}>{title}</h2>
        {children}
        <menu>
          <button type="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button type="submit" className={isDangerous ? "danger" : "primary"}>
            {action}
          </button>
        </menu>
      </form>
    </dialog>
  );
}

// The errors of this client. None of them tells a feature, a label, a value or a key.

export type Kind =
  | "InvalidTask" // the bundle is not one that may be sealed to
  | "UnsupportedTask" // a valid task of a form that this client does not make reports for
  | "InvalidExample" // what the page gave does not fit the task; nothing was stored or sent
  | "TooMany" // the page's origin calls too often
  | "Refused" // the caller may not ask for this
  | "Unavailable"; // the browser lacks something, or a server does not answer

export class MaskedLarkError extends Error {
  readonly kind: Kind;

  constructor(kind: Kind, message: string) {
    super(message);
    this.name = "MaskedLarkError";
    this.kind = kind;
  }
}

export function invalidTask(message: string): MaskedLarkError {
  return new MaskedLarkError("InvalidTask", message);
}

export function invalidExample(message: string): MaskedLarkError {
  return new MaskedLarkError("InvalidExample", message);
}

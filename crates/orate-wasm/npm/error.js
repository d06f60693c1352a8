/** What went wrong. `kind` is for programs, the message for people. */
export class OrateError extends Error {
  constructor(kind, message) {
    super(message);
    this.name = "OrateError";
    this.kind = kind;
  }
}

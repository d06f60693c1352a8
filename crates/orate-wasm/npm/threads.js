// Threads of a module (wasi-threads): workers that are there before they are needed, since one that is
// started while the module runs would wait for it. They share `control`, four numbers for each: its state and
// the thread that it runs. The first number of all is how many threads were begun.

const IDLE = 0,
  CLAIMED = 1,
  BEGUN = 2;
const ID = 1,
  ARGUMENT = 2; // behind the state
const NONE_FREE = -6;

/** `control` for as many workers. */
export const control = (workers) => new Int32Array(new SharedArrayBuffer(16 * (1 + workers)));

/** Imports of an instance besides those of WASI. */
export const imports = (control, memory) => ({
  env: { memory },
  wasi: {
    "thread-spawn"(argument) {
      for (let at = 4; at < control.length; at += 4) {
        if (Atomics.compareExchange(control, at, IDLE, CLAIMED) === IDLE) {
          const id = Atomics.add(control, 0, 1) + 1;
          control[at + ID] = id;
          control[at + ARGUMENT] = argument;
          Atomics.store(control, at, BEGUN);
          Atomics.notify(control, at);
          return id;
        }
      }
      return NONE_FREE;
    },
  },
});

/** Runs the threads of a worker, one after the other, for ever. */
export function run(control, worker, begin) {
  for (const at = 4 * (1 + worker); ; Atomics.store(control, at, IDLE)) {
    for (let state; (state = Atomics.load(control, at)) !== BEGUN;) Atomics.wait(control, at, state);
    begin(control[at + ID], control[at + ARGUMENT]);
  }
}

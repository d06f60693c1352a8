/** Plays chunks without gaps, while later ones are computed. Make it in a click handler. */
export class Player {
  #sources = new Set();
  #end = 0; // time at which what is scheduled ends

  constructor(context = new AudioContext()) {
    this.context = context;
    // Pages may only play after a click; in its handler this takes effect at once.
    context.resume();
  }

  /** Plays a chunk after those before it, and returns the seconds until it begins. */
  add({ samples, sampleRate }) {
    const { context } = this,
      now = context.currentTime;
    const at = Math.max(this.#end, now);
    if (samples.length) {
      const buffer = context.createBuffer(1, samples.length, sampleRate);
      buffer.copyToChannel(samples, 0);
      const source = new AudioBufferSourceNode(context, { buffer });
      source.connect(context.destination);
      source.onended = () => this.#sources.delete(source);
      this.#sources.add(source);
      source.start(at);
      this.#end = at + buffer.duration;
    }
    return at - now;
  }

  /** Seconds of sound that are scheduled and not played yet. */
  get ahead() {
    return Math.max(0, this.#end - this.context.currentTime);
  }

  /** Resolves when all of it was played, or stopped. */
  async played() {
    while (this.#sources.size) {
      await Promise.all(
        [...this.#sources].map((source) => new Promise((done) => source.addEventListener("ended", done))),
      );
    }
  }

  /** Ends the sound at once. */
  stop() {
    for (const source of this.#sources) source.stop();
    this.#end = 0;
  }
}

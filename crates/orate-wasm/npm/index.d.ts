/** Bytes of a file that is there already. */
export type Bytes = Blob | ArrayBuffer | ArrayBufferView;

/** A URL to fetch and keep, or a file that is there already. */
export type Source = string | URL | Bytes;

/** What went wrong. `kind` is for programs, the message for people. */
export class OrateError extends Error {
  constructor(kind: OrateError["kind"], message: string);
  readonly kind: "invalid-input" | "invalid-model" | "system" | "cancelled" | "bug";
}

export interface Progress {
  /** Bytes of all files so far. */
  loaded: number;
  /** Bytes of all files whose size is known. */
  total: number;
}

export interface OpenOptions {
  /**
   * A packed voice or another GGUF file, or the files of a model folder by their paths in it. Default: the
   * English voice of this package.
   */
  model?: Source | Record<string, Source>;
  /** The second file of a model of two GGUF files. */
  codec?: Source;
  /**
   * Where to compute. Default: a GPU, if the browser has WebGPU on one and JavaScript Promise Integration; else
   * the processor. `webgpu` takes a software rasterizer too, and is an error where there is none.
   */
  device?: "auto" | "cpu" | "webgpu";
  /** The module to use on the processor. Default: the fastest that the browser can run. */
  simd?: "auto" | "plain" | "relaxed";
  /** Threads. Default: one for each processor, at most 8, on an isolated page; else 1. */
  threads?: number;
  /** Whether fetched files are kept in the browser's storage. Default: true. */
  keep?: boolean;
  /** Whether the first text is as fast as later ones, for some time now. Default: true. */
  warmUp?: boolean;
  /** Options of the engine, such as `{ precision: "f32" }`. */
  options?: Record<string, string | number | boolean>;
  onProgress?: (progress: Progress) => void;
  /** Ends loading. */
  signal?: AbortSignal;
}

export interface SpeechOptions {
  /**
   * One of the model's voices, or a file: a voice that `Engine.clone` returned, or for Supertonic the JSON
   * file of a style.
   */
  voice?: string | Bytes;
  /** Code, tag or English name of a language: `en`, `pt-BR`, `english`. */
  language?: string;
  /** Another seed gives another reading. Default: 0. */
  seed?: number;
  /** Seconds of silence between pieces of a long text, 0 to 10. */
  silence?: number;
  /** The model's own sound, without trimming and set loudness. */
  raw?: boolean;
  /** Whether the text has tags such as `[pause:1s]`. */
  tags?: boolean;
  /** Whether the text is SSML. */
  ssml?: boolean;
  /** Whether words get times. */
  wordTimes?: boolean;
  /** Speaking rate, for models that have it. */
  speed?: number;
  /** Stops the text. */
  signal?: AbortSignal;
  /** Options of the model: see `EngineInfo.options`. */
  [option: string]: string | number | boolean | Bytes | AbortSignal | undefined;
}

export interface CloneOptions {
  /** The words of the recording. The model then also takes over the manner, where it can. */
  transcript?: string;
  /** Stops waiting for the voice. */
  signal?: AbortSignal;
}

export interface Word {
  text: string;
  /** Seconds from the beginning of the audio. */
  start: number;
  end: number;
}

export interface Audio {
  /** Mono samples, about -1 to 1. */
  samples: Float32Array;
  /** Samples per second. */
  sampleRate: number;
  /** Words with times, if `wordTimes` is set; in a stream with the last chunk of a piece. */
  words: Word[];
  /** What was asked for and has no effect with this model; in a stream with the first chunk. */
  warnings: string[];
}

export interface Chunk extends Audio {
  /** Number of samples in the chunks before. */
  start: number;
  /** Number of the piece of text, from 0. */
  piece: number;
  /** Whether it is the last chunk of its piece. */
  endsPiece: boolean;
  /** The piece as the model reads it. */
  text: string;
}

export interface ModelOption {
  name: string;
  help: string;
  kind: "switch" | "whole" | "number" | "text" | "choice";
  choices: string[];
  /** Least and greatest number. */
  range: [number, number] | null;
  default: string;
}

export interface EngineInfo {
  family: string;
  /** Such as `cpu (relaxed-simd, 1 thread)`, or `webgpu:0`. */
  device: string;
  /** Name of the GPU, as far as the browser tells it. */
  gpu?: string;
  threads: number;
  precision: string;
  sampleRate: number;
  voices: string[];
  defaultVoice: string | null;
  /** Whether `Engine.clone` makes voices of recordings. */
  canClone: boolean;
  /** Language codes of the model; empty if it has one language. */
  languages: string[];
  options: ModelOption[];
  /** URL of the WebAssembly module. */
  module: string;
}

/** A model in a worker. */
export class Engine {
  private constructor();
  static open(options?: OpenOptions): Promise<Engine>;
  readonly info: EngineInfo;
  readonly sampleRate: number;
  readonly voices: string[];
  /** Loads weights and compiles plans for texts with these options. */
  warmUp(options?: SpeechOptions): Promise<void>;
  /** Speaks chunk by chunk. A chunk is computed when it is asked for; leaving the loop stops the text. */
  stream(text: string, options?: SpeechOptions): AsyncGenerator<Chunk, void, void>;
  /** Speaks all of a text. */
  speak(text: string, options?: SpeechOptions): Promise<Audio>;
  /**
   * Makes a voice of a recording, as a file for `voice`. The recording is a file that the browser can decode
   * (WAV, MP3, what MediaRecorder made), or samples. Keep the voice for later visits; `orate voices` has such
   * files, too. Ask the speaker first.
   */
  clone(recording: Bytes | Pick<Audio, "samples" | "sampleRate">, options?: CloneOptions): Promise<Blob>;
  /** Ends the worker and frees its memory. What is running fails. */
  close(): void;
}

/** Plays chunks one after the other without gaps. Make it in a click handler. */
export class Player {
  constructor(context?: AudioContext);
  readonly context: AudioContext;
  /** Seconds of sound that are scheduled and not played yet. */
  readonly ahead: number;
  /** Plays a chunk after those before it, and returns the seconds until it begins. */
  add(audio: Pick<Audio, "samples" | "sampleRate">): number;
  /** Resolves when all of it was played, or stopped. */
  played(): Promise<void>;
  /** Ends the sound at once. */
  stop(): void;
}

/** The audio of all chunks of a stream. */
export function join(chunks: Chunk[]): Audio;

/** A WAV file (16 bits, mono). */
export function wav(audio: Pick<Audio, "samples" | "sampleRate">): Blob;

/** What this browser has. */
export function support(): { simd: boolean; relaxedSimd: boolean; isolated: boolean; storage: boolean };

export interface StoredFile {
  url: string;
  /** Bytes that are here. */
  loaded: number;
  total?: number;
  complete?: boolean;
}

/** Lists the files that the browser keeps. */
export function stored(): Promise<StoredFile[]>;

/** Removes a file that the browser keeps, or all of them. */
export function removeStored(url?: string | URL): Promise<void>;

/** Version of the package. */
export const VERSION: string;

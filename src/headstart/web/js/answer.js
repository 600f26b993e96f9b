/** Gathers one answer as it arrives; knows nothing of how it is shown. */

import { ApiError, remove, stream } from "./api.js";
import { Provenance } from "./provenance.js";
import { words } from "./words.js";

const LOADING_PAUSE = 700; // milliseconds between two tries
// 404: an answer of which nothing was seen may be on its way; 503: its model is loaded, for ten minutes at most
const TRIES = { 404: 4, 503: 860 };

/** @typedef {import("./tree.js").Message} Message */

/** One answer while it arrives. */
export class Answer {
  version = 0; // counts how often it began anew
  place = { bytes: 0, isOver: false }; // in its stream
  content = "";
  reasoning = "";
  /** @type {{id: string, name: string, arguments: string}[]} */
  toolCalls = [];
  provenance = new Provenance();
  finish = "";
  model = "";
  /** @type {any} */
  timings = null;
  /** @type {any} */
  metrics = null;
  /** @type {any} what each speculator alone would have given */
  counterfactual = null;
  seed = -1;
  /** @type {{total: number, processed: number} | null} while the prompt is processed */
  progress = null;
  startedAt = performance.now();
  firstTokenAt = 0;

  /**
   * @param {Message} [known] what there is of it already
   * @param {Message} [begun] the answer that it continues: its own stream has nothing of that
   */
  constructor(known, begun) {
    this.begun = begun;
    this.knownBytes = known?.streamed ?? 0; // of its stream
    this.content = known?.content ?? "";
    this.reasoning = known?.reasoning ?? "";
    if (known?.provenance) this.provenance.add(known.provenance);
  }

  /** Forget all of it, because it comes again from its beginning. */
  restart() {
    const { version, place, provenance, begun } = this;
    provenance.clear();
    if (begun?.provenance) provenance.add(begun.provenance);
    Object.assign(this, new Answer(begun, begun), { version: version + 1, place, provenance, startedAt: NaN }); // when it began is not known here
  }

  /** Whether its stream brought a token. */
  get hasBegun() {
    return this.content !== (this.begun?.content ?? "") || this.provenance.starts.length > (this.begun?.provenance?.tokens.length ?? 0);
  }

  /** Tokens a second so far. */
  get speed() {
    if (this.timings) return this.timings.predicted_per_second;
    const seconds = (performance.now() - this.firstTokenAt) / 1000;
    return this.firstTokenAt && seconds > 0.2 ? this.provenance.starts.length / seconds : 0;
  }

  /** @param {any} chunk of chat completions */
  take(chunk) {
    const choice = chunk.choices?.[0];
    this.progress = chunk.prompt_progress ?? (choice?.provenance ? null : this.progress);
    if (choice?.provenance) {
      this.firstTokenAt ||= performance.now();
      this.provenance.add(choice.provenance);
    }
    const delta = choice?.delta ?? {};
    this.content += delta.content ?? "";
    this.reasoning += delta.reasoning_content ?? "";
    for (const call of delta.tool_calls ?? []) this.takeCall(call);
    this.finish = choice?.finish_reason ?? this.finish;
    this.model = chunk.model ?? this.model;
    this.timings = chunk.timings ?? this.timings;
    this.metrics = chunk.metrics ?? this.metrics;
    this.counterfactual = chunk.counterfactual ?? this.counterfactual;
    this.seed = chunk.seed ?? this.seed;
  }

  /** @param {any} call a part of one */
  takeCall(call) {
    const known = (this.toolCalls[call.index ?? 0] ??= { id: "", name: "", arguments: "" });
    known.id += call.id ?? "";
    known.name += call.function?.name ?? "";
    known.arguments += call.function?.arguments ?? "";
  }
}

/**
 * Ask and gather.
 * @param {Record<string, any>} body messages and settings
 * @param {Answer} answer
 * @param {AbortSignal} signal
 * @param {() => void} onChange after every chunk
 * @param {string} [id] under which the server keeps the stream, so that it can be followed again
 */
export async function run(body, answer, signal, onChange, id) {
  const whole = { ...body, stream: true, provenance: true, return_progress: true, return_metrics: true };
  answer.place = { bytes: 0, isOver: false };
  for await (const chunk of stream("v1/chat/completions", whole, signal, id ? { "X-Conversation-Id": id } : {}, answer.place)) {
    answer.take(chunk);
    onChange();
  }
  if (!answer.place.isOver) throw new Error(words.noEnd);
  onChange();
}

/**
 * Follow an answer that the server still writes, or wrote not long ago: from where its stream was read to,
 * else from its beginning, else, where the server has dropped that, from where the known part ends.
 * @param {string} id
 * @param {Answer} answer
 * @param {AbortSignal} signal
 * @param {() => void} onChange
 */
export async function follow(id, answer, signal, onChange) {
  const left = { ...TRIES };
  const { place } = answer;
  for (;;) {
    try {
      let isFirst = !place.bytes;
      for await (const chunk of stream(`v1/stream?conv_id=${id}&from=${place.bytes}`, null, signal, {}, place)) {
        if (isFirst) answer.restart();
        isFirst = false;
        answer.take(chunk);
        onChange();
      }
      if (!place.isOver) throw new Error(words.noEnd);
      return onChange();
    } catch (error) {
      const status = error instanceof ApiError ? error.status : 0;
      const isComing = status === 503 || (status === 404 && !answer.hasBegun);
      if (status === 400 && !place.bytes && answer.knownBytes) {
        place.bytes = answer.knownBytes;
        continue;
      }
      if (status === 400) throw new ApiError(status, words.behind);
      if (!isComing || signal.aborted) throw error;
      if (!left[status]--) throw status === 503 ? new ApiError(status, words.stillBusy(/** @type {Error} */ (error).message)) : error;
    }
    await new Promise((resolve) => setTimeout(resolve, LOADING_PAUSE));
  }
}

/** End an answer that goes on without us. @param {string} id */
export async function endAnswer(id) {
  await remove(`v1/stream?conv_id=${id}`);
}

/** Runs one request and gathers its answer; knows nothing of how it is shown. */

import { stream } from "./api.js";
import { Provenance } from "./provenance.js";

/** One answer while it arrives. */
export class Answer {
  constructor() {
    this.content = "";
    this.reasoning = "";
    /** @type {{id: string, name: string, arguments: string}[]} */
    this.toolCalls = [];
    this.provenance = new Provenance();
    this.finish = "";
    /** @type {any} */
    this.timings = null;
    /** @type {any} */
    this.metrics = null;
    this.seed = -1;
    /** @type {{total: number, processed: number} | null} while the prompt is read */
    this.progress = null;
    this.firstTokenAt = 0;
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
    this.timings = chunk.timings ?? this.timings;
    this.metrics = chunk.metrics ?? this.metrics;
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
 */
export async function run(body, answer, signal, onChange) {
  const whole = { ...body, stream: true, provenance: true, return_progress: true };
  for await (const chunk of stream("v1/chat/completions", whole, signal)) {
    answer.take(chunk);
    onChange();
  }
  onChange();
}

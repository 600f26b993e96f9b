/** Answers that are being written. They go on whichever conversation is open, and after a reload. */

import { Answer, endAnswer, follow, run } from "./answer.js";
import { ApiError } from "./api.js";
import { toast } from "./dom.js";
import { paced } from "./frames.js";
import * as store from "./store.js";
import { words } from "./words.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./store.js").Conversation} Conversation */

const SAVE_PAUSE = 300; // milliseconds between two writes of a running answer
const MOST_TOKENS_SAVED_OFTEN = 2000; // writing the provenance of more takes longer than a frame

/**
 * @typedef {object} Generation
 * @property {Conversation} conversation
 * @property {Message} message
 * @property {Answer} answer
 * @property {AbortController} stopping
 * @property {boolean} isForgotten its conversation was deleted
 */

export class Generations {
  /**
   * @param {import("./server.js").Server} server
   * @param {(generation: Generation) => void} onChange called so often that all is shown, but not more
   * @param {(generation: Generation, queued: Promise<Conversation["queued"]>) => void} onEnd with what is sent next
   */
  constructor(server, onChange, onEnd) {
    this.server = server;
    this.onChange = onChange;
    this.onEnd = onEnd;
    /** @type {Map<string, Generation>} conversation: what is written in it */
    this.running = new Map();
  }

  /**
   * @param {Conversation} conversation
   * @param {Message} message takes the answer
   * @param {Answer} answer
   * @param {Record<string, any>} body of the request
   */
  async start(conversation, message, answer, body) {
    const generation = this.begin(conversation, message, answer);
    const { chosen } = this.server.models;
    const request = chosen ? { model: chosen, ...body } : body; // asked again, it goes to the same model
    await this.finish(generation, (onChange) => run(request, answer, generation.stopping.signal, onChange, message.id));
  }

  /**
   * Follow an answer that was running when the page was left.
   * @param {Conversation} conversation
   * @param {Message} message
   * @param {Message} [begun] the answer that it continues
   */
  async resume(conversation, message, begun) {
    const generation = this.begin(conversation, message, new Answer(message, begun));
    await this.finish(generation, (onChange) => follow(message.id, generation.answer, generation.stopping.signal, onChange));
  }

  /** @param {string} id of a conversation */
  stop(id) {
    const generation = this.running.get(id);
    if (!generation) return;
    generation.stopping.abort();
    endAnswer(generation.message.id).catch(() => {});
  }

  /** Stop what nobody wants to keep. @param {string} id of a conversation */
  forget(id) {
    const generation = this.running.get(id);
    if (generation) generation.isForgotten = true;
    this.stop(id);
  }

  /**
   * @param {Conversation} conversation
   * @param {Message} message
   * @param {Answer} answer
   * @returns {Generation}
   */
  begin(conversation, message, answer) {
    const generation = { conversation, message, answer, stopping: new AbortController(), isForgotten: false };
    message.state = "running";
    conversation.running = message.id;
    this.running.set(conversation.id, generation);
    return generation;
  }

  /**
   * @param {Generation} generation
   * @param {(onChange: () => void) => Promise<void>} produce
   */
  async finish(generation, produce) {
    const { conversation, message, answer } = generation;
    const isLong = () => answer.provenance.starts.length > MOST_TOKENS_SAVED_OFTEN;
    const beginning = () => {
      const { provenance, ...rest } = copyAnswer(message, answer);
      return isLong() ? rest : { ...rest, provenance };
    };
    // at once: a conversation never names an answer that is not there
    await store.saveConversation(conversation, beginning()).catch(() => {}); // that nothing can be kept is said at the end
    let saving = 0;
    const save = () => {
      clearTimeout(saving);
      saving = 0;
      if (!generation.isForgotten) store.saveMessages(beginning()).catch(() => {});
    };
    addEventListener("pagehide", save);
    const draw = paced(() => {
      copyAnswer(message, answer);
      this.onChange(generation);
    });
    const onChange = () => {
      draw.ask();
      saving ||= setTimeout(save, SAVE_PAUSE);
    };
    /** @type {Partial<Message>} */
    let end = { state: "done" };
    try {
      await this.insist(generation, produce, onChange);
    } catch (error) {
      end = { state: "stopped" };
      if (!generation.stopping.signal.aborted) {
        end = { state: "failed", failure: failureText(error) };
        endAnswer(message.id).catch(() => {}); // it could go on unseen
      }
    }
    clearTimeout(saving);
    removeEventListener("pagehide", save);
    end.baselineMs = this.server.baselineMs(answer.provenance.starts.length);
    const keep = isLong() ? store.saveLongMessage : store.saveMessages;
    await keep({ ...copyAnswer(message, answer), ...end }).catch((error) => toast(words.notKept(error.message)));
    this.running.delete(conversation.id);
    if (generation.isForgotten) return store.deleteMessages([message.id]);
    // it is over for the browser's database, for the user and for us at the same moment
    Object.assign(message, end);
    conversation.running = null;
    const queued = store.endRunning(conversation, message.id).catch(() => conversation.queued);
    draw.flush();
    this.onEnd(generation, queued);
  }

  /**
   * Where the connection broke off, follow the answer once the server is there again.
   * @param {Generation} generation
   * @param {(onChange: () => void) => Promise<void>} produce
   * @param {() => void} onChange
   */
  async insist({ message, answer, stopping: { signal } }, produce, onChange) {
    try {
      await produce(onChange);
    } catch (error) {
      if (error instanceof ApiError || signal.aborted) throw error;
      await Promise.race([this.server.refresh(), new Promise((_, stop) => signal.addEventListener("abort", stop))]);
      try {
        await follow(message.id, answer, signal, onChange);
      } catch (later) {
        const neverBegan = later instanceof ApiError && later.status === 404 && !answer.hasBegun;
        if (!neverBegan) throw later;
        await produce(onChange);
      }
    }
  }
}

/**
 * @param {Message} message
 * @param {Answer} answer
 */
function copyAnswer(message, answer) {
  message.content = answer.content;
  message.reasoning = answer.reasoning || undefined;
  message.toolCalls = answer.toolCalls.length ? answer.toolCalls : undefined;
  message.provenance = answer.provenance.data;
  message.finish = answer.finish;
  message.model = answer.model || message.model;
  const firstMs = answer.firstTokenAt - answer.startedAt;
  message.firstMs = firstMs > 0 ? firstMs : message.firstMs ?? answer.timings?.prompt_ms;
  message.timings = answer.timings;
  message.metrics = answer.metrics;
  message.counterfactual = answer.counterfactual;
  message.seed = answer.seed;
  message.streamed = answer.place.bytes || answer.knownBytes;
  return message;
}

/** @param {unknown} error */
function failureText(error) {
  if (!(error instanceof ApiError)) return words.broke(error instanceof Error ? error.message : String(error));
  return error.status === 404 ? words.lost : error.message;
}

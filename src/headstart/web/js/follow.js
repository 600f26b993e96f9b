/** Stays at the end of the thread as it grows, unless the user scrolls up; then a button leads back. */

import { byId } from "./dom.js";

const SCROLLING_KEYS = ["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", " "];
const NEAR_THE_END = 80; // pixels

export class Follow {
  /**
   * @param {HTMLElement} scroller
   * @param {HTMLElement} thread inside it
   */
  constructor(scroller, thread) {
    this.scroller = scroller;
    this.isFollowing = true;
    this.button = byId("to-end");
    this.button.addEventListener("click", () => this.toEnd());
    let isActing = false; // the user scrolls; the thread moves of itself too, as heights become known
    const act = (/** @type {any} */ event) => {
      isActing ||= !(event instanceof KeyboardEvent) ? event.type !== "pointerdown" || event.target === scroller : SCROLLING_KEYS.includes(event.key);
    };
    for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) scroller.addEventListener(kind, act, { passive: true });
    let top = 0; // where the last scrolling ended: the first frame of a smooth one is still near the end
    scroller.addEventListener("scroll", () => {
      const isNear = this.distance < NEAR_THE_END;
      const isUp = isActing && scroller.scrollTop < top;
      top = scroller.scrollTop;
      if (isNear && !isUp) {
        this.isFollowing = true;
        isActing = false;
      } else if (isActing) this.isFollowing = false;
      this.button.hidden = this.isFollowing || isNear;
    });
    // behind the layout of a frame, where asking for heights costs nothing
    const observer = new ResizeObserver(() => this.isFollowing && this.toEnd());
    observer.observe(thread);
    observer.observe(scroller);
  }

  get distance() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight;
  }

  toEnd() {
    this.isFollowing = true;
    this.button.hidden = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}

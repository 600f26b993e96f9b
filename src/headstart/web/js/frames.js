/** Calls a function after changes, but not so often that the page stutters. */

const LEAST_PAUSE = 60; // milliseconds between two calls
const SHARE = 4; // a pause is at least so many times what the last call took

/**
 * @param {() => void} draw
 * @returns {{ask: () => void, flush: () => void}}
 */
export function paced(draw) {
  let timer = 0;
  let frame = 0;
  let cost = 0;
  const flush = () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    timer = frame = 0;
    const start = performance.now();
    draw();
    cost = performance.now() - start;
  };
  return {
    ask: () => {
      timer ||= setTimeout(() => (frame = requestAnimationFrame(flush)), Math.max(LEAST_PAUSE, SHARE * cost));
    },
    flush,
  };
}

/** What follows runs in a task of its own, behind what the user does and what is to be painted. @returns {Promise<void>} */
export function nextTask() {
  return new Promise((resolve) => setTimeout(resolve));
}

/** Calls a function after changes, but not so often that the page stutters. */

const LEAST_PAUSE = 60; // milliseconds
const SHARE = 4; // a pause is at least so many times what the last call took

/**
 * @param {() => void} draw
 * @param {number} pause milliseconds between two calls at least
 * @returns {{ask: () => void, flush: () => void}}
 */
export function paced(draw, pause = LEAST_PAUSE) {
  let timer = 0;
  let cost = 0;
  const flush = () => {
    clearTimeout(timer);
    timer = 0;
    const start = performance.now();
    draw();
    cost = performance.now() - start;
  };
  return {
    ask: () => {
      timer ||= setTimeout(() => requestAnimationFrame(flush), Math.max(pause, SHARE * cost));
    },
    flush,
  };
}

/** What follows runs in a task of its own, behind what the user does and what is to be painted. @returns {Promise<void>} */
export function nextTask() {
  return new Promise((resolve) => setTimeout(resolve));
}

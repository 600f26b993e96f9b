/** katex.js leaves its functions in `globalThis.katex`. */
export {};

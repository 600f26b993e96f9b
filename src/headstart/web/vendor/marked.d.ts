/** Types of marked.js: js/libraries.js says what is used of it. */
export const Marked: any;

/** Types of uplot.js: js/libraries.js says what is used of it. */
declare const library: any;
export default library;

/** Makes elements. Text always goes in as text, never as HTML. */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Make an element: `h("button", {class: "quiet", onclick: save}, "Save")`.
 * Keys that begin with "on" are listeners; true is an empty attribute; null and false are left out.
 * @param {string} name
 * @param {Record<string, any>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {any} the element; its type follows from the name
 */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled" || key === "indeterminate")
      /** @type {any} */ (element)[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/**
 * Replace all children.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * Give an element other children, but keep those that are alike and change only what differs: what
 * has the focus or was scrolled stays so, and the browser lays out little again.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function update(element, ...children) {
  const wanted = document.createDocumentFragment();
  append(wanted, children);
  morph(element, wanted);
}

/** @param {Node} old @param {Node} wanted whose children may be moved */
function morph(old, wanted) {
  const children = [...wanted.childNodes];
  for (const [i, child] of children.entries()) {
    const known = old.childNodes[i];
    if (!known) old.appendChild(child);
    else if (known.isEqualNode(child)) continue;
    else if (known.nodeName !== child.nodeName) known.replaceWith(child);
    else if (known instanceof Element && child instanceof Element) {
      for (const name of known.getAttributeNames()) if (!child.hasAttribute(name)) known.removeAttribute(name);
      for (const name of child.getAttributeNames()) {
        const value = child.getAttribute(name) ?? "";
        if (known.getAttribute(name) === value) continue;
        if (name === "style") /** @type {HTMLElement} */ (known).style.cssText = value; // as an attribute, the policy forbids it
        else known.setAttribute(name, value);
      }
      morph(known, child);
    } else known.nodeValue = child.nodeValue;
  }
  while (old.childNodes.length > children.length) old.lastChild?.remove();
}

/**
 * @param {ParentNode & Node} element
 * @param {(Child | Child[])[]} children
 */
function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * An element of the page that must be there.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

const ICONS = /** @type {Record<string, string>} */ ({
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M5 12h13M13 6l6 6-6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  retry: "M20 11a8 8 0 1 0-2 6M20 4v7h-7",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  compare: "M8 5v14M16 5v14M3 9h5M16 15h5",
  attach: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l7-7",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  theme: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  drafts: "M4 20h16M6 16l9-11 4 3-9 11H6z",
  down: "M12 5v14M6 13l6 6 6-6",
  search: "M11 4a7 7 0 1 0 0 14a7 7 0 0 0 0-14M16 16l5 5",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  close: "M6 6l12 12M18 6L6 18",
  forward: "M5 5l7 7-7 7M13 5l7 7-7 7",
});

/**
 * A line drawing beside a label or in a button that has one.
 * @param {string} name
 */
export function icon(name) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(namespace, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Draw what index.html only names. @param {ParentNode} root */
export function fillIcons(root) {
  for (const element of root.querySelectorAll("[data-icon]")) element.prepend(icon(/** @type {any} */ (element).dataset.icon));
}

/**
 * A button with a drawing and a name that screen readers say and a tooltip shows.
 * @param {string} name of the drawing
 * @param {string} label
 * @param {(event: any) => void} onclick
 * @param {Record<string, any>} [attributes]
 */
export function iconButton(name, label, onclick, attributes = {}) {
  return h(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes },
    icon(name),
  );
}

/**
 * Let the user keep a text as a file.
 * @param {string} name
 * @param {string} text
 * @param {string} type
 */
export function download(name, text, type) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Say something to screen readers without moving the focus. @param {string} text */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** A short note at the bottom of the window that goes away by itself. @param {string} text */
export function toast(text) {
  const note = h("div", { class: "toast", role: "status" }, text);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), 6000);
}

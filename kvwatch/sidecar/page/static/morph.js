// Patches one tree of elements to equal another and changes only what differs. So focus, unfolded parts, selected text
// and the scroll position stay. The children of an element with `data-keep` belong to the script and stay, too.

/** Patches `old` to equal `fresh`, an element of the same name. */
export function morph(old, fresh) {
  attributes(old, fresh);
  if (!old.hasAttribute("data-keep")) children(old, fresh);
}

function attributes(old, fresh) {
  const users = old.localName === "details" ? ["open"] : []; // the reader folds and unfolds
  for (const { name, value } of fresh.attributes) {
    if (!users.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!users.includes(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
}

function children(old, fresh) {
  const named = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
  let at = old.firstChild;
  for (const one of [...fresh.childNodes]) {
    const match = one.id && named.has(one.id) ? named.get(one.id) : sameKind(at, one);
    if (!match) {
      old.insertBefore(document.importNode(one, true), at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else old.insertBefore(match, at);
    if (match.nodeType === Node.ELEMENT_NODE) morph(match, one);
    else if (match.data !== one.data) match.data = one.data;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

/** `at`, if it can be patched to equal `one`. Elements with an id match by that alone. */
function sameKind(at, one) {
  return at && at.nodeName === one.nodeName && !at.id && !one.id ? at : null;
}

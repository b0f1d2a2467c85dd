// Makes one tree of the page like another, changing only what differs: focus, what is unfolded, selected text and
// the position on the page stay. What is marked `data-keep` belongs to the script: its attributes follow, its inside
// stays.

/** Makes `old` like `fresh`, two elements of the same name. */
export function morph(old, fresh) {
  attributes(old, fresh);
  if (!old.hasAttribute("data-keep")) children(old, fresh);
}

function attributes(old, fresh) {
  const users = old.localName === "details" ? ["open"] : []; // unfolded or not is the reader's to say
  for (const { name, value } of fresh.attributes) {
    if (!users.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!users.includes(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
}

function children(old, fresh) {
  const named = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
  const wanted = new Set([...fresh.children].map((one) => one.id).filter(Boolean));
  let at = old.firstChild;
  for (const one of [...fresh.childNodes]) {
    const match = one.id && named.has(one.id) ? named.get(one.id) : next(at, one, wanted);
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

/** The node at this place, if it can become `one`. One that has a name stays for that which has the same. */
function next(at, one, wanted) {
  if (!at || at.nodeType !== one.nodeType || at.nodeName !== one.nodeName) return null;
  if (one.id || (at.id && wanted.has(at.id))) return null;
  return at.id ? null : at;
}

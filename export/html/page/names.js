// SPDX-License-Identifier: Apache-2.0

// Names of holders are shortened here as internal/varpath does in the terminal: fitHolder("train.py:8 main() local a.b['x'].c[0..9]", 12) is
// "a…c[0..9]". A width is in characters.

// holderElements are a variable and what leads on from it: ".kept", "[0..7]", " closure".
function holderElements(name) {
  const out = [];
  for (let at = 0; at < name.length;) {
    let end = at + elementLength(name, at);
    out.push(name.slice(at, end));
    at = end;
  }
  return out;
}

function elementLength(name, at) {
  if (name[at] === '[') return bracketLength(name, at);
  if (name[at] === '…') return 1;
  if (/^\.grad_fn( |<|$)/.test(name.slice(at, at + 9))) return name.length - at;
  for (let i = at + 1; i < name.length; i++) {
    if (name[i] === '.' && name[i + 1] === '.') i++; // self.head_1..head_240
    else if ('.[ …'.includes(name[i])) return i - at;
  }
  return name.length - at;
}

function bracketLength(name, at) {
  let depth = 0;
  let quote = '';
  for (let i = at; i < name.length; i++) {
    const c = name[i];
    if (quote) {
      if (c === '\\') i++;
      else if (c === quote) quote = '';
    } else if (c === '\'' || c === '"') quote = c;
    else if (c === '[') depth++;
    else if (c === ']' && --depth === 0) return i + 1 - at;
  }
  return name.length - at;
}

const lengthOf = (text) => [...text].length;

function cutMiddle(text, width) {
  const all = [...text];
  if (all.length <= width) return text;
  if (width < 1) return '';
  const head = Math.floor(width / 2);
  return `${all.slice(0, head).join('')}…${all.slice(all.length - (width - head - 1)).join('')}`;
}

// fitHolder shortens a name so that it still tells what to look for: the frame goes first, then what lies between the variable and the last
// attribute, then the elements of containers.
function fitHolder(name, width) {
  if (lengthOf(name) <= width) return name;
  const mark = ' local ';
  const frame = name.replace(/\[[^\]]*\]/g, (s) => '#'.repeat(s.length)).lastIndexOf(mark);
  const path = frame < 0 ? name : name.slice(frame + mark.length);
  const elements = holderElements(path);
  if (elements.length === 0) return cutMiddle(name, width);
  if (lengthOf(path) <= width) return path;
  const closed = [elements[0]];
  const last = lastAttribute(elements);
  elements.slice(1).forEach((e, i) => {
    if (e[0] !== '[' && i + 1 <= last) closed.push(e);
    else if (e[0] === '[' && closed[closed.length - 1] !== '[…]') closed.push('[…]');
  });
  const end = lastAttribute(closed);
  return fitBetween(elements, last, width) || fitLongest(elements, width) || fitBetween(closed, end, width) || fitBetween(closed.slice(0, end + 1), end, width)
    || cutMiddle(`${closed[0]}…${closed[end].replace(/^\./, '')}`, width);
}

// fitLongest leaves out the middle of the longest element; empty: that does not suffice.
function fitLongest(elements, width) {
  const lengths = elements.map(lengthOf);
  const long = lengths.indexOf(Math.max(...lengths));
  const keep = lengths[long] - lengthOf(elements.join('')) + width;
  const least = 8; // characters
  return keep < least ? '' : [...elements.slice(0, long), cutMiddle(elements[long], keep), ...elements.slice(long + 1)].join('');
}

function lastAttribute(elements) {
  let last = elements.length - 1;
  while (last > 0 && elements[last][0] !== '.') last--;
  return last;
}

// fitBetween leaves out the fewest elements before the last attribute, but not the variable; empty: that does not suffice.
function fitBetween(elements, last, width) {
  const all = elements.join('');
  if (lengthOf(all) <= width) return all;
  if (last === 0) return '';
  let head = elements[0];
  let tail = elements.slice(last).join('');
  const short = () => `${head}…${tail.replace(/^…/, '').replace(/^\./, '')}`;
  if (lengthOf(short()) > width) return '';
  let best = short();
  let end = last;
  while (end > 1) {
    const kept = tail;
    tail = elements[end - 1] + tail;
    if (lengthOf(short()) > width) {
      tail = kept;
      break;
    }
    end--;
    best = short();
  }
  for (let i = 1; i < end; i++) {
    head += elements[i];
    if (lengthOf(short()) > width) break;
    best = short();
  }
  return best;
}

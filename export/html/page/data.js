// SPDX-License-Identifier: Apache-2.0

// The data blocks, as docs/decisions/page.md describes them.

const UNKNOWN = -1;

async function inflate(id) {
  const text = document.getElementById(id).textContent;
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

async function inflateJSON(id) {
  return JSON.parse(new TextDecoder().decode(await inflate(id)));
}

// Columns reads varints, as Go's encoding/binary writes them.
class Columns {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  unsigned() {
    let value = 0;
    for (let unit = 1; ; unit *= 128) { // numbers above 32 bits cannot be shifted
      const byte = this.data[this.at++];
      value += (byte & 127) * unit;
      if (byte < 128) return value;
    }
  }

  signed() {
    const value = this.unsigned();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

const QUANTITIES = 4;

// decodeCurves decodes of each curve its times and, by quantity, low, high and last. NaN is what is not known.
function decodeCurves(data, points) {
  const columns = new Columns(data);
  return points.map((n) => {
    const time = new Float64Array(n);
    for (let i = 0, t = 0; i < n; i++) time[i] = t += columns.unsigned();
    const curve = { time, low: [], high: [], last: [] };
    for (let q = 0; q < QUANTITIES; q++) {
      const [low, high, last] = [new Float64Array(n), new Float64Array(n), new Float64Array(n)];
      for (let i = 0, v = 0; i < n; i++) {
        v += columns.signed();
        last[i] = v > 0 ? v - 1 : NaN;
      }
      for (let i = 0; i < n; i++) low[i] = last[i] - columns.signed();
      for (let i = 0; i < n; i++) high[i] = last[i] + columns.signed();
      curve.low.push(low);
      curve.high.push(high);
      curve.last.push(last);
    }
    return curve;
  });
}

function decodeLifetimes(data, n) {
  const columns = new Columns(data);
  const lifetimes = { count: n, group: new Uint32Array(n), allocated: new Uint16Array(n), freed: new Uint16Array(n), blocks: new Float64Array(n), bytes: new Float64Array(n) };
  for (let i = 0, g = 0; i < n; i++) lifetimes.group[i] = g += columns.unsigned();
  for (let i = 0, b = 0; i < n; i++) {
    if (i === 0 || lifetimes.group[i] !== lifetimes.group[i - 1]) b = 0;
    lifetimes.allocated[i] = b += columns.unsigned();
  }
  for (let i = 0; i < n; i++) lifetimes.freed[i] = lifetimes.allocated[i] + columns.unsigned();
  for (let i = 0; i < n; i++) lifetimes.blocks[i] = columns.unsigned();
  for (let i = 0; i < n; i++) lifetimes.bytes[i] = columns.unsigned();
  return lifetimes;
}

// decodePlaces decodes the segments and blocks of the caching allocators, each with its address and from which to which moment.
function decodePlaces(data, places) {
  const columns = new Columns(data);
  const list = (n, names) => {
    const out = { count: n, addr: new Float64Array(n) };
    for (let i = 0, a = 0; i < n; i++) out.addr[i] = a += columns.signed();
    for (const name of names) {
      out[name] = new Float64Array(n);
      for (let i = 0; i < n; i++) out[name][i] = columns.unsigned();
    }
    for (let i = 0; i < n; i++) out.freed[i] += out.allocated[i];
    return out;
  };
  return {
    segments: list(places.segments, ['part', 'size', 'expandable', 'allocated', 'freed']),
    blocks: list(places.blocks, ['part', 'size', 'rounding', 'group', 'before', 'allocated', 'freed']),
  };
}

// undelta turns steps into values.
function undelta(steps) {
  let sum = 0;
  return steps.map((s) => { sum += s; return sum; });
}

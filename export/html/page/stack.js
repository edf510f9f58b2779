// SPDX-License-Identifier: Apache-2.0

// What of the memory is drawn in which colour: the largest rows of the table, and the rest.

const LAYERS = 8;

// Stack is the rows of a grouping that have a colour, with their course.
class Stack {
  constructor(model, by, mask) {
    this.by = by;
    const { of } = GROUPINGS[by];
    const keys = new Map();
    this.row = new Int32Array(model.count); // of each group
    for (let g = 0; g < model.count; g++) {
      const [key, frame] = of(model, g);
      if (!keys.has(key)) {
        keys.set(key, { key, index: keys.size, name: by === 'function' ? frame.name : rowName(frame), mean: 0, first: 0, last: 0, plain: isSpecial(frame.name), before: frame.name === BEFORE });
      }
      this.row[g] = keys.get(key).index;
    }
    this.rows = [...keys.values()];
    this.weigh(model);
    this.layers = this.choose();
    this.layerOf = new Int32Array(model.count).fill(-1);
    const at = new Map(this.layers.flatMap((l, i) => l.rows.map((r) => [r.index, i])));
    for (let g = 0; g < model.count; g++) this.layerOf[g] = at.get(this.row[g]);
    this.order(model);
    this.filter(model, mask);
  }

  // weigh is the mean of each row, and what it has at the beginning and the end.
  weigh(model) {
    const end = model.moments.length - 1;
    const time = (i) => model.moments[Math.min(i, end)];
    const whole = Math.max(1, time(end) - time(0));
    const { group, allocated, freed, bytes, count } = model.lifetimes;
    for (let i = 0; i < count; i++) {
      if (!(model.groups.flags[group[i]] & COUNTED) || allocated[i] === freed[i]) continue;
      const r = this.rows[this.row[group[i]]];
      r.mean += bytes[i] * (time(freed[i]) - time(allocated[i])) / whole;
      if (allocated[i] === 0) r.first += bytes[i];
      if (freed[i] > end) r.last += bytes[i];
    }
    for (const [g, series] of model.series) {
      const r = this.rows[this.row[g]];
      r.mean += series.bytes.reduce((a, b) => a + b, 0) / series.bytes.length;
      r.first += series.bytes[0];
      r.last += series.bytes[end];
    }
  }

  // choose sets a colour for each of the rows that are largest or grow most. The rest is one layer, and so is what has no name.
  choose() {
    const score = (r) => r.mean + Math.max(0, r.last - r.first);
    const named = this.rows.filter((r) => !r.plain && score(r) > 0).sort((a, b) => score(b) - score(a) || (a.name < b.name ? -1 : 1));
    const layers = [];
    const before = this.rows.filter((r) => r.before && score(r) > 0);
    if (before.length > 0) layers.push({ name: BEFORE, color: '--before', rows: before });
    layers.push(...named.slice(0, LAYERS).map((r, i) => ({ name: r.name, color: `--s${i + 1}`, rows: [r], key: r.key })));
    const rest = this.rows.filter((r) => !r.before && (r.plain || named.indexOf(r) >= LAYERS || score(r) <= 0));
    const special = rest.filter((r) => r.plain);
    const others = rest.filter((r) => !r.plain);
    if (others.length > 0) layers.push({ name: 'smaller rows', color: '--other', rows: others });
    const drawn = special.filter((r) => score(r) > 0); // as Layers.without of pagemodel: pictures have the same name
    if (special.length > 0) layers.push({ name: drawn.length === 1 ? drawn[0].name : 'not known', color: '--rest', rows: special });
    return layers;
  }

  // order puts what is steady at the bottom, so that what comes and goes does not move it.
  order(model) {
    const all = model.courses(this.layerOf, this.layers.length, Uint8Array.from(model.groups.flags, (f) => f & COUNTED));
    const rough = all.map((course) => {
      const [low, high] = course.subarray(0, model.moments.length).reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, 0]);
      return high > 0 ? (high - low) / high : 2;
    });
    const rank = (i) => (this.layers[i].color === '--before' ? -1 : this.layers[i].color.startsWith('--s') ? rough[i] : this.layers[i].color === '--other' ? 3 : 4);
    const order = this.layers.map((_, i) => i).sort((a, b) => rank(a) - rank(b));
    this.layers = order.map((i) => this.layers[i]);
    const to = order.reduce((out, i, n) => { out[i] = n; return out; }, []);
    this.layerOf = this.layerOf.map((l) => to[l]);
  }

  // filter computes the courses of what the filters choose.
  filter(model, mask) {
    this.courses = model.courses(this.layerOf, this.layers.length, mask);
    this.total = new Float64Array(model.moments.length);
    for (const course of this.courses) for (let i = 0; i < this.total.length; i++) this.total[i] += Math.max(0, course[i]);
  }

  // colorOf is the variable of a row's colour.
  colorOf(key) {
    for (const l of this.layers) if (l.rows.some((r) => r.key === key)) return l.color;
    return '--other';
  }
}

// SPECIAL are names of what has none. They have no colour.
const SPECIAL = new Set([BEFORE, '[lost events]', '[no stack]', '[unknown stack]', '[holder not known]', '[freed before the end]', 'unknown', '']);

function isSpecial(name) {
  return SPECIAL.has(name);
}

function rowName(frame) {
  return frame.kind === OWN || frame.kind === LIBRARY ? `${place(frame)} ${frame.line > 0 ? frame.name : ''}`.trim() : frame.name;
}

// bySteps is whether growth is said by steps: there are enough of them.
function bySteps(steps) {
  return steps.length > 10;
}

// stepAt is how many steps were over at a time, with the part of the one that was going on.
function stepAt(steps, time) {
  let low = 0;
  for (let high = steps.length - 1; low < high;) {
    const middle = (low + high + 1) >> 1;
    if (steps[middle] <= time) low = middle;
    else high = middle - 1;
  }
  const length = low + 1 < steps.length ? steps[low + 1] - steps[low] : 0;
  return low + (length > 0 ? Math.min(1, Math.max(0, (time - steps[low]) / length)) : 0);
}

// growthOf is how fast a course grows when it settled: from the middle fifth of the steps, or of the time, to the last one, by the lowest of
// each. Bytes each step, whatever time the steps between took, or each nanosecond; 0: it does not.
function growthOf(times, course, steps) {
  const [begin, end] = bySteps(steps) ? [steps[0], steps[steps.length - 1]] : [times[0], times[times.length - 1]];
  const fifth = (end - begin) / 5;
  if (!(fifth > 0)) return 0;
  const least = (from, to) => {
    let low = -1;
    for (let i = 0; i < times.length; i++) if (times[i] >= from && times[i] <= to && (low < 0 || course[i] < course[low])) low = i;
    return low;
  };
  const [a, b, c] = [2, 3, 4].map((n) => least(begin + n * fifth, begin + (n + 1) * fifth));
  if (Math.min(a, b, c) < 0 || course[c] <= course[b] || course[b] <= course[a]) return 0;
  const length = bySteps(steps) ? stepAt(steps, times[c]) - stepAt(steps, times[a]) : times[c] - times[a];
  return length > 0 ? (course[c] - course[a]) / length : 0;
}

// SPDX-License-Identifier: Apache-2.0

// The model adds up what was in use when. Every sum of the page is made here.

const MEMORIES = [
  "torch's blocks", "driver memory, not torch's", "torch's segments", 'pinned host memory', 'memory of others, shared', 'addresses without memory', 'contexts and pools',
];
const MEMORY_TORCH = 0;
const COUNTED = 1;
const AGAIN = 2;
const KIND_BOTH = 1 + 2; // the highest and the lowest of a stretch of time
const KIND_START = 16;
const KIND_END = 32;
const KIND_PINNED = 4 + 8 + 16 + 32 + 64; // peaks, refusals, beginning, end, and what was asked for
const [OWN, LIBRARY, NATIVE, NONE] = [0, 1, 2, 3];
const FRAME_MODES = { own: [OWN], python: [OWN, LIBRARY], all: [OWN, LIBRARY, NATIVE] };
const BEFORE = '[before attach]';

// Frames that are in every stack and say nothing: part of the path of a file, and of which functions; null: all of them.
const BOILERPLATE = [
  ['torch/nn/modules/module.py', ['_wrapped_call_impl', '_call_impl', 'inner']], ['torch/utils/_contextlib.py', null], ['torch/_compile.py', null],
  ['torch/_dynamo/eval_frame.py', null], ['torch/autograd/graph.py', ['_engine_run_backward']], ['torch/autograd/__init__.py', ['backward', '_engine_run_backward']],
  ['torch/optim/optimizer.py', ['wrapper', '_use_grad']], ['torch/optim/lr_scheduler.py', ['wrapper']], ['torch/_tensor.py', ['__torch_function__']],
  ['torch/overrides.py', null], ['torch/_ops.py', ['__call__']], ['/contextlib.py', null], ['/functools.py', null], ['/threading.py', null], ['/runpy.py', null],
  ['<frozen ', null], ['/asyncio/', null], ['/concurrent/futures/', null], ['/ipykernel/', null], ['/IPython/', null], ['/tornado/', null], ['/traitlets/', null], ['/zmq/', null],
];

// isBoilerplate says whether a frame is hidden unless all frames are shown.
function isBoilerplate(frame) {
  if (frame.kind !== LIBRARY) return false;
  const name = frame.name.slice(frame.name.lastIndexOf('.') + 1);
  return BOILERPLATE.some(([file, names]) => frame.file.includes(file) && (!names || names.includes(name)));
}

class Model {
  constructor(head, curves) { // totals: the memory in use at each moment; undefined until setTree
    this.head = head;
    this.curves = curves;
    this.moments = head.moments.time;
    this.views = {};
  }

  // setTree enters stacks, groups and lifetimes. What is known from the allocators' totals only becomes groups too.
  setTree(tree, lifetimes) {
    this.frames = tree.frames.kind.map((kind, i) => ({
      kind, name: tree.text[tree.frames.name[i]], file: tree.text[tree.frames.file[i]], line: tree.frames.line[i], source: tree.text[tree.frames.source[i]],
    }));
    for (const f of this.frames) f.boilerplate = isBoilerplate(f);
    this.text = tree.text;
    this.places = tree.places;
    const [from, length] = [undelta(tree.phases.from), tree.phases.length];
    this.phases = tree.phases.name.map((name, i) => ({ name: tree.text[name], from: from[i], to: from[i] + length[i] }));
    this.nodes = tree.nodes;
    this.groups = tree.groups;
    this.lifetimes = lifetimes;
    this.series = new Map(); // of groups that are totals: { bytes, blocks } by moment
    this.head.parts.forEach((part, i) => {
      if (!part.torch) return;
      const before = part.before.map((v) => Math.max(0, v));
      const known = [...part.known];
      for (const c of part.beforeFor) {
        this.addTotal(i, BEFORE, c.bytes, c.blocks, c.for, c.holder);
        c.bytes.forEach((v, at) => { before[at] -= v; });
        c.blocks.forEach((v, at) => { known[at] -= v; });
      }
      this.addTotal(i, BEFORE, before, known, 'unknown', BEFORE);
      this.addTotal(i, '[lost events]', part.lost, null, 'unknown', '[lost events]');
    });
    this.count = this.groups.part.length;
    this.totals = this.course(Uint8Array.from(this.groups.flags, (f) => f & COUNTED));
  }

  addTotal(part, name, bytes, blocks, category, holder) {
    if (!bytes.some((v) => v !== 0)) return;
    let frame = this.frames.findIndex((f) => f.kind === NONE && f.name === name);
    if (frame < 0) frame = this.frames.push({ kind: NONE, name, file: '', line: 0, source: '' }) - 1;
    const g = this.groups;
    const node = this.nodes.parent.push(0) - 1;
    this.nodes.frame.push(frame);
    const at = g.part.push(part) - 1;
    g.memory.push(MEMORY_TORCH);
    g.node.push(node);
    g.own.push(frame);
    g.thread.push(0);
    g.phase.push(this.textOf('unknown'));
    g.for.push(this.textOf(category));
    g.holder.push(this.textOf(holder));
    g.class.push(0);
    g.flags.push(COUNTED | AGAIN);
    this.series.set(at, { bytes, blocks });
  }

  // textOf is the index of a text.
  textOf(text) {
    const i = this.text.indexOf(text);
    return i < 0 ? this.text.push(text) - 1 : i;
  }

  // mask says which groups the filters let through.
  mask(s) {
    const g = this.groups;
    const mask = new Uint8Array(this.count);
    const place = this.hits(s.query);
    for (let i = 0; i < this.count; i++) {
      mask[i] = (s.memory === 'gpu' ? g.flags[i] & COUNTED : g.memory[i] === s.memory)
        && (s.part < 0 || g.part[i] === s.part) && (s.thread < 0 || g.thread[i] === s.thread)
        && (s.class < 0 || g.class[i] === s.class) && (!s.only || s.only.has(i)) && (!place || place[g.node[i]]) ? 1 : 0;
    }
    return mask;
  }

  // hits says which nodes a search finds in themselves or in a caller; null without one.
  hits(query) {
    if (!query) return null;
    const frame = this.frameHits(query);
    const { parent, frame: of } = this.nodes;
    const hit = new Uint8Array(parent.length);
    for (let i = 1; i < hit.length; i++) hit[i] = hit[parent[i]] | frame[of[i]];
    for (let i = 0; i < this.count; i++) hit[this.groups.node[i]] |= frame[this.groups.own[i]];
    return hit;
  }

  frameHits(query) {
    const q = query.toLowerCase();
    return Uint8Array.from(this.frames, (f) => (`${f.name}\n${f.file}:${f.line || ''}\n${f.source}`.toLowerCase().includes(q) ? 1 : 0));
  }

  // sums are the bytes and blocks of each group: live at a moment, or live at the end of a range, allocated and kept in it.
  sums(s, mask) {
    const out = {};
    for (const measure of ['live', 'allocated', 'kept']) out[measure] = { bytes: new Float64Array(this.count), blocks: new Float64Array(this.count) };
    const at = s.from < 0 ? s.at : s.to;
    const from = s.from < 0 ? at : s.from;
    const { group, allocated, freed, bytes, blocks, count: n } = this.lifetimes;
    const add = (to, g, i) => {
      to.bytes[g] += bytes[i];
      to.blocks[g] += blocks[i];
    };
    for (let i = 0; i < n; i++) {
      const g = group[i];
      if (!mask[g] || allocated[i] > at) continue;
      if (freed[i] > at) add(out.live, g, i);
      if (allocated[i] <= from || this.groups.flags[g] & AGAIN) continue;
      add(out.allocated, g, i);
      if (freed[i] > at) add(out.kept, g, i);
    }
    for (const [g, series] of this.series) {
      if (!mask[g]) continue;
      out.live.bytes[g] = series.bytes[at];
      out.live.blocks[g] = series.blocks ? series.blocks[at] : 0;
    }
    return out;
  }

  // unsized says whether the sizes of a group's blocks are not known.
  unsized(g) {
    return this.groups.class[g] === 0 && !this.series.has(g);
  }

  // unknownBlocks says whether a group is a total of which the blocks are not known.
  unknownBlocks(g, bytes, blocks) {
    return this.series.has(g) && bytes > 0 && blocks === 0;
  }

  // course is the bytes of some groups at every moment.
  course(mask) {
    const out = new Float64Array(this.moments.length + 1);
    const { group, allocated, freed, bytes, count: n } = this.lifetimes;
    for (let i = 0; i < n; i++) {
      if (!mask[group[i]] || allocated[i] === freed[i]) continue;
      out[allocated[i]] += bytes[i];
      out[freed[i]] -= bytes[i];
    }
    for (let i = 1; i < out.length; i++) out[i] += out[i - 1];
    for (const [g, series] of this.series) {
      if (mask[g]) series.bytes.forEach((v, i) => { out[i] += v; });
    }
    return out;
  }

  // courses are the bytes of several lists of groups at every moment: of[group] is the number of the list, -1: none.
  courses(of, n, mask) {
    const m = this.moments.length;
    const out = Array.from({ length: n }, () => new Float64Array(m + 1));
    const { group, allocated, freed, bytes, count } = this.lifetimes;
    for (let i = 0; i < count; i++) {
      const g = group[i];
      if (of[g] < 0 || !mask[g] || allocated[i] === freed[i]) continue;
      out[of[g]][allocated[i]] += bytes[i];
      out[of[g]][freed[i]] -= bytes[i];
    }
    for (const course of out) for (let i = 1; i < m; i++) course[i] += course[i - 1];
    for (const [g, series] of this.series) {
      if (of[g] >= 0 && mask[g]) series.bytes.forEach((v, i) => { out[of[g]][i] += v; });
    }
    return out;
  }

  // steps are the times at which they begin.
  get steps() {
    if (!this.stepTimes) this.stepTimes = undelta(this.head.steps.begin);
    return this.stepTimes;
  }

  // stepAt is the number of the step that runs at a time; 0: none does.
  stepAt(time) {
    const i = above(this.steps, time);
    return i > 0 ? this.head.steps.first + i - 1 : 0;
  }

  // phaseAt is the phase in which memory was allocated at a time or last before it; empty: not known.
  phaseAt(time) {
    const i = above(this.phases || [], time, (p) => p.from);
    return i > 0 ? this.phases[i - 1].name : '';
  }

  // shownFrames are those of a node's stack that a mode shows, the outermost first.
  shownFrames(node, mode) {
    const shown = FRAME_MODES[mode];
    const { parent, frame } = this.nodes;
    const out = [];
    for (let n = node; n !== 0; n = parent[n]) {
      const f = this.frames[frame[n]];
      if (f.kind === NONE || (shown.includes(f.kind) && (mode === 'all' || !f.boilerplate))) out.push(frame[n]);
    }
    return out.reverse();
  }

  // view is a tree of the frames of a mode alone: a hidden frame's callees are its caller's. split groups the stacks below what they have in
  // common; inverted puts the innermost frame at the root.
  view(mode, split, inverted) {
    const key = `${mode} ${split} ${inverted}`;
    if (this.views[key]) return this.views[key];
    const v = { parent: [0], frame: [-1], children: [[]], depth: [0], of: new Int32Array(this.count), label: [null], split };
    const index = new Map();
    const enter = (up, f, label) => {
      const id = `${up} ${label ?? f}`;
      let i = index.get(id);
      if (i === undefined) {
        i = v.parent.push(up) - 1;
        v.frame.push(f);
        v.label.push(label ?? null);
        v.depth.push(v.depth[up] + 1);
        v.children.push([]);
        v.children[up].push(i);
        index.set(id, i);
      }
      return i;
    };
    const paths = new Map();
    for (let g = 0; g < this.count; g++) {
      const node = this.groups.node[g];
      if (!paths.has(node)) paths.set(node, this.shownFrames(node, mode));
      let path = paths.get(node);
      if (path.length === 0) path = [this.groups.own[g]];
      if (inverted) path = [...path].reverse();
      let at = split ? enter(0, -1, GROUPINGS[split].of(this, g)[1].name) : 0;
      for (const f of path) at = enter(at, f);
      v.of[g] = at;
    }
    this.views[key] = v;
    return v;
  }

  // below are the groups whose stacks go through a node of a view.
  below(view, node) {
    const out = new Set();
    for (let g = 0; g < this.count; g++) {
      let n = view.of[g];
      while (n > node) n = view.parent[n]; // a parent comes before its children
      if (n === node) out.add(g);
    }
    return out;
  }

  // weigh adds up a tree: a node has what its callees have.
  weigh(view, sum) {
    const bytes = new Float64Array(view.parent.length);
    const blocks = new Float64Array(view.parent.length);
    for (let g = 0; g < this.count; g++) {
      if (sum.bytes[g] < 0) continue; // events were lost: no area can show less than nothing
      bytes[view.of[g]] += sum.bytes[g];
      blocks[view.of[g]] += sum.blocks[g];
    }
    for (let i = bytes.length - 1; i > 0; i--) {
      bytes[view.parent[i]] += bytes[i];
      blocks[view.parent[i]] += blocks[i];
    }
    return { bytes, blocks };
  }

  // nearest is the moment nearest to a time.
  nearest(time) {
    const t = this.moments;
    let [low, high] = [0, t.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (t[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low > 0 && time - t[low - 1] <= t[low] - time ? low - 1 : low;
  }

  // last is the moment at or before a time.
  last(time) {
    let i = this.nearest(time);
    while (i > 0 && this.moments[i] > time) i--;
    while (i + 1 < this.moments.length && this.moments[i + 1] <= time) i++;
    return i;
  }

  // notable says whether the peak of a part is worth a mark: not of memory whose device was not known yet, when others are there.
  notable(i) {
    const p = this.head.parts[i];
    return p.peak > 0 && (p.torch || !p.device.endsWith('?') || this.head.parts.length === 1);
  }

  partName(i) {
    const p = this.head.parts[i];
    const several = new Set(this.head.parts.map((q) => q.pid)).size > 1;
    return several ? `pid ${p.pid} ${p.device}` : p.device;
  }
}

// above is how many of a sorted list are at or before a time.
function above(list, time, of = (v) => v) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(list[middle]) <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// place is a frame in one line: "gpt.py:38".
function place(frame) {
  if (!frame.file) return frame.kind === NONE ? frame.name : '';
  const base = frame.file.slice(frame.file.lastIndexOf('/') + 1);
  return frame.kind !== NATIVE && frame.line > 0 ? `${base}:${frame.line}` : base;
}

function classText(c) {
  if (c === 0) return 'unknown';
  const top = 2 ** (c - 1);
  const text = (n) => bytesText(n).replace('.0 ', ' ');
  return top <= 512 ? `up to ${text(top)}` : `over ${text(top / 2)} to ${text(top)}`;
}

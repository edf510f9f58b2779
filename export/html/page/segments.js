// SPDX-License-Identifier: Apache-2.0

// The segments of the caching allocators at a moment, each a strip: blocks in the colours of the table, and what is free between them.

const STRIP = 16;
const STRIP_GAP = 5;
const FIRST_STRIPS = 60;

class SegmentsView {
  // parts: canvas, tip, text, more.
  constructor(parts, model, handlers) {
    Object.assign(this, parts, { model, handlers });
    this.all = false;
    this.strips = [];
    this.boxes = [];
    this.more.addEventListener('click', () => {
      this.all = true;
      this.draw();
    });
    this.canvas.addEventListener('pointermove', (e) => this.hover(e));
    this.canvas.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    this.canvas.addEventListener('click', (e) => {
      const box = this.boxAt(e);
      if (box && box.block >= 0 && this.groupOf(box.block) >= 0) this.handlers.chosen(this.groupOf(box.block));
    });
  }

  get places() {
    return this.data;
  }

  // show draws the moment, or the nearest one before it whose blocks are known.
  show(at, state, mask, stack) {
    Object.assign(this, { state, mask, stack });
    this.at = this.known(at);
    this.asked = at;
    this.compute();
    this.draw();
  }

  known(at) {
    const { kind } = this.model.head.moments;
    if (!this.model.places.pinned) return at;
    const near = kind.map((k, i) => (k & KIND_PINNED ? i : -1)).filter((i) => i >= 0);
    return near.reduce((best, i) => (Math.abs(i - at) < Math.abs(best - at) ? i : best), near[0] ?? at);
  }

  // compute finds the segments of the moment with what is in them.
  compute() {
    const { segments, blocks } = this.places;
    const there = (list, i) => list.allocated[i] <= this.at && list.freed[i] > this.at && (this.state.part < 0 || list.part[i] === this.state.part);
    const strips = [];
    for (let i = 0; i < segments.count; i++) {
      if (there(segments, i)) strips.push({ part: segments.part[i], addr: segments.addr[i], size: segments.size[i], expandable: segments.expandable[i] === 1, known: true, blocks: [] });
    }
    let at = 0;
    for (let i = 0; i < blocks.count; i++) {
      if (!there(blocks, i)) continue;
      while (at < strips.length && (strips[at].part < blocks.part[i] || (strips[at].part === blocks.part[i] && strips[at].addr + strips[at].size <= blocks.addr[i]))) at++;
      const strip = strips[at];
      if (strip && strip.part === blocks.part[i] && strip.addr <= blocks.addr[i]) strip.blocks.push(i);
      else at = this.outside(strips, at, i);
    }
    for (const s of strips) {
      s.used = s.blocks.reduce((n, i) => n + blocks.size[i], 0);
      s.hole = 0;
      let end = s.addr;
      for (const i of [...s.blocks, -1]) {
        const start = i < 0 ? s.addr + s.size : blocks.addr[i];
        s.hole = Math.max(s.hole, start - end);
        end = i < 0 ? end : blocks.addr[i] + blocks.size[i];
      }
    }
    this.strips = strips.sort((a, b) => b.size - a.size || a.addr - b.addr);
  }

  // outside enters a block that lies in no known segment, behind the one before it where they touch. It returns the number of the next strip.
  outside(strips, at, i) {
    const { blocks } = this.places;
    const last = strips[at - 1];
    if (last && !last.known && last.part === blocks.part[i] && last.addr + last.size === blocks.addr[i]) {
      last.size += blocks.size[i];
      last.blocks.push(i);
      return at;
    }
    strips.splice(at, 0, { part: blocks.part[i], addr: blocks.addr[i], size: blocks.size[i], expandable: false, known: false, blocks: [i] });
    return at + 1;
  }

  groupOf(block) {
    return this.places.blocks.group[block] - 1;
  }

  // nameOf is the line and the holder of a block.
  nameOf(block) {
    const g = this.groupOf(block);
    const { model } = this;
    if (g < 0) {
      const b = this.places.blocks.before[block];
      return { frame: { kind: NONE, name: BEFORE, file: '', line: 0, source: '' }, holder: model.text[model.places.holder[b]], category: model.text[model.places.for[b]] };
    }
    return { frame: model.frames[model.groups.own[g]], holder: model.text[model.groups.holder[g]], category: model.text[model.groups.for[g]] };
  }

  colorOf(block) {
    const g = this.groupOf(block);
    if (g >= 0) return this.stack.layerOf[g] >= 0 ? this.stack.layers[this.stack.layerOf[g]].color : '--other';
    const { holder, category } = this.nameOf(block);
    const name = { holder: holder || BEFORE, category: category === 'unknown' ? '' : category }[this.stack.by];
    const layer = name && this.stack.layers.find((l) => l.rows.some((r) => r.name === name));
    return layer ? layer.color : '--before';
  }

  draw() {
    const strips = this.all ? this.strips : this.strips.slice(0, FIRST_STRIPS);
    const scale = window.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    this.width = this.canvas.parentElement.clientWidth;
    const rows = this.layout(strips);
    this.canvas.style.height = `${rows * (STRIP + STRIP_GAP)}px`;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(rows * (STRIP + STRIP_GAP) * scale);
    const c = this.canvas.getContext('2d');
    c.scale(scale, scale);
    for (const b of this.boxes) {
      if (b.block < 0) {
        c.fillStyle = color('--hole');
        c.fillRect(b.x, b.y, b.width, STRIP);
        c.strokeStyle = color('--line-strong');
        c.strokeRect(b.x + 0.5, b.y + 0.5, Math.max(0, b.width - 1), STRIP - 1);
        continue;
      }
      const g = this.groupOf(b.block);
      c.globalAlpha = !this.stack.filtered || (g >= 0 && this.mask[g]) ? 1 : 0.18;
      c.fillStyle = color(this.colorOf(b.block));
      c.fillRect(b.x, b.y + 1, Math.max(0.5, b.width - (b.width > 3 ? 1 : 0)), STRIP - 2);
      c.globalAlpha = 1;
    }
    this.say();
    this.more.hidden = strips.length === this.strips.length;
    this.more.textContent = `Show all ${count(this.strips.length)} segments`;
  }

  // layout puts small segments side by side, and breaks those that are larger than a row.
  layout(strips) {
    this.boxes = [];
    const largest = strips.reduce((n, s) => Math.max(n, s.size), 1);
    const unit = largest / this.width; // bytes of a pixel
    let [x, row] = [0, 0];
    for (const s of strips) {
      const width = Math.max(3, s.size / unit);
      if (x > 0 && x + width > this.width) [x, row] = [0, row + 1];
      const y = row * (STRIP + STRIP_GAP);
      this.boxes.push({ x, y, width: Math.min(width, this.width), block: -1, strip: s });
      for (const i of s.blocks) {
        this.boxes.push({
          x: x + (this.places.blocks.addr[i] - s.addr) / s.size * width, y, width: this.places.blocks.size[i] / s.size * width, block: i, strip: s,
        });
      }
      x += width + 4;
    }
    return row + 1;
  }

  // say is the sums in words.
  say() {
    const { head } = this.model;
    const sum = (of) => this.strips.reduce((n, s) => n + of(s), 0);
    const [reserved, used] = [sum((s) => (s.known ? s.size : 0)), sum((s) => s.used)];
    const inside = sum((s) => (s.known ? s.used : 0));
    const empty = sum((s) => (s.blocks.length === 0 ? s.size : 0));
    const hole = this.strips.reduce((n, s) => Math.max(n, s.blocks.length > 0 ? s.hole : 0), 0);
    const torch = head.parts.filter((p, i) => p.torch && (this.state.part < 0 || this.state.part === i));
    const allocated = totalAt(torch.map((p) => p.allocated), this.at);
    const known = this.strips.filter((s) => s.known).length;
    const words = [
      `${plural(known, 'segment')}${known < this.strips.length ? ` and ${plural(this.strips.length - known, 'run')} of blocks whose segment is not known` : ''}, ${bytesText(reserved)}`, `in use ${bytesText(used)}`, `free in segments in use (inactive splits) ${bytesText(reserved - inside - empty)}, the largest piece ${bytesText(hole)}`,
      `free as a whole ${bytesText(empty)}`,
    ];
    if (allocated !== UNKNOWN && allocated !== used) words.push(`${signedBytes(allocated - used)} of the allocator's total ${allocated > used ? 'are in no known block' : 'are counted twice'}`);
    const when = `${seconds(this.model.moments[this.at] - head.start)}${this.at === this.asked ? '' : ', the nearest moment that has a map'}`;
    this.text.replaceChildren(el('b', {}, when), ` · ${words.join(' · ')}`);
    Object.assign(this.text.dataset, { used, reserved, holes: reserved - inside - empty, free: empty, allocated, at: this.at });
    this.canvas.setAttribute('aria-label', `segments at ${when}: ${words.join(', ')}`);
  }

  boxAt(e) {
    const area = this.canvas.getBoundingClientRect();
    const [x, y] = [e.clientX - area.left, e.clientY - area.top];
    const under = this.boxes.filter((b) => y >= b.y && y < b.y + STRIP && x >= b.x - 0.5 && x < b.x + Math.max(1, b.width));
    return under[under.length - 1];
  }

  hover(e) {
    const box = this.boxAt(e);
    if (!box) {
      this.tip.hidden = true;
      return;
    }
    const row = (name, text) => el('div', { class: 'row' }, el('span', {}, name), el('span', {}, text));
    const s = box.strip;
    const rows = [];
    if (box.block >= 0) {
      const { frame, holder, category } = this.nameOf(box.block);
      const { size, rounding } = this.places.blocks;
      rows.push(el('b', {}, rowName(frame)), frame.source ? el('code', {}, frame.source) : '', row('block', `${bytesText(size[box.block])}, ${exactText(size[box.block])}`));
      if (rounding[box.block] > 0) rows.push(row('asked for', exactText(size[box.block] + 1 - rounding[box.block])));
      rows.push(row('held by', holder || 'not known'), row('category', category));
    } else {
      rows.push(el('b', {}, 'free'), row('largest free piece of the segment', bytesText(s.hole)));
    }
    const name = s.known ? `segment${s.expandable ? ', expandable' : ''}` : 'in no known segment';
    rows.push(row(`${name} 0x${s.addr.toString(16)}`, `${bytesText(s.used)} of ${bytesText(s.size)}`));
    this.tip.replaceChildren(...rows);
    placeTip(this.tip, e);
  }
}

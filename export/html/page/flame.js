// SPDX-License-Identifier: Apache-2.0

// The flame graph, on a canvas: the root at the top, what it called below.

const ROW = 21;
const FLAME_COLORS = ['--own', '--library', '--native', '--none'];

class FlameView {
  // handlers: chosen(node): a frame was clicked.
  constructor(canvas, tip, model, handlers) {
    Object.assign(this, { canvas, tip, model, handlers });
    this.zoomNode = 0;
    this.boxes = [];
    canvas.addEventListener('click', (e) => {
      const box = this.boxAt(e);
      if (box) this.choose(box.node);
    });
    canvas.addEventListener('keydown', (e) => this.keys(e));
    canvas.addEventListener('blur', () => this.point(null));
    canvas.addEventListener('pointermove', (e) => this.hover(e));
    canvas.addEventListener('pointerleave', () => this.point(null));
  }

  // show takes a tree and what its nodes weigh. found: by frame, what a search finds; null without one.
  // colorOf is the colour of what a frame is a row of the table of; null: it is none.
  show(view, weight, title, found, colorOf) {
    if (view !== this.view) this.zoomNode = 0;
    Object.assign(this, { view, weight, title, found, colorOf });
    if (!(weight.bytes[this.zoomNode] > 0 || weight.blocks[this.zoomNode] > 0)) this.zoomNode = 0;
    this.draw();
  }

  choose(node) {
    this.zoomNode = node;
    this.point(null);
    this.handlers.chosen(node);
  }

  // keys go to the frame above, below or beside; Enter chooses it.
  keys(e) {
    const now = this.pointed || this.boxes[0];
    if (!now || e.ctrlKey || e.metaKey || e.altKey) return;
    const row = (depth) => this.boxes.filter((b) => b.depth === depth).sort((a, b) => a.x - b.x);
    let next = now;
    if (e.key === 'Enter' || e.key === ' ') this.choose(now.node);
    else if (e.key === 'ArrowUp') next = row(now.depth - 1).find((b) => b.x <= now.x + 0.5 && b.x + b.width > now.x);
    else if (e.key === 'ArrowDown') next = row(now.depth + 1).find((b) => b.x + b.width > now.x && b.x < now.x + now.width);
    else if (e.key === 'ArrowLeft') next = row(now.depth).reverse().find((b) => b.x < now.x);
    else if (e.key === 'ArrowRight') next = row(now.depth).find((b) => b.x > now.x);
    else return;
    e.preventDefault();
    e.stopPropagation();
    if (!next || (next === now && this.pointed)) return;
    const area = this.canvas.getBoundingClientRect();
    this.pointAt(next, { clientX: area.left + next.x + Math.min(next.width / 2, 40), clientY: area.top + (next.depth + 1) * ROW });
  }

  // layout places every node that can be seen.
  layout() {
    const { view, weight } = this;
    this.boxes = [];
    this.rows = 0;
    const path = [];
    for (let n = this.zoomNode; n !== 0; n = view.parent[n]) path.unshift(n);
    path.unshift(0);
    path.forEach((node, depth) => this.boxes.push({ node, depth, x: 0, width: this.width }));
    const whole = weight.bytes[this.zoomNode];
    const stack = [{ node: this.zoomNode, depth: path.length - 1, x: 0 }];
    while (stack.length > 0) {
      const { node, depth, x } = stack.pop();
      this.rows = Math.max(this.rows, depth + 1);
      let left = x;
      const below = view.children[node].filter((n) => weight.bytes[n] > 0).sort((a, b) => weight.bytes[b] - weight.bytes[a] || a - b);
      for (const child of below) {
        const width = weight.bytes[child] / whole * this.width;
        if (width < 0.4) break;
        this.boxes.push({ node: child, depth: depth + 1, x: left, width });
        stack.push({ node: child, depth: depth + 1, x: left });
        left += width;
      }
    }
  }

  draw() {
    if (!this.view) return;
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    this.layout();
    this.height = this.rows * ROW + 2;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    const c = this.canvas.getContext('2d');
    c.scale(scale, scale);
    c.font = '12px system-ui, sans-serif';
    c.textBaseline = 'middle';
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    this.colors = FLAME_COLORS.map(color);
    this.color = color;
    this.ink = color('--flame-ink');
    this.line = color('--flame-line');
    this.find = color('--find');
    for (const box of this.boxes) this.drawBox(c, box);
    if (this.pointed) {
      c.strokeStyle = color('--ink');
      c.lineWidth = 1.5;
      c.strokeRect(this.pointed.x + 0.75, this.pointed.depth * ROW + 0.75, Math.max(1, this.pointed.width - 1.5), ROW - 2.5);
    }
    this.canvas.setAttribute('aria-label', `flame graph, ${this.title}: ${exactText(this.weight.bytes[this.zoomNode])} in ${plural(this.weight.blocks[this.zoomNode], 'block')}`);
    this.canvas.dataset.bytes = this.weight.bytes[this.zoomNode];
    this.canvas.dataset.blocks = this.weight.blocks[this.zoomNode];
  }

  drawBox(c, box) {
    const frame = this.frame(box.node);
    const y = box.depth * ROW;
    c.globalAlpha = box.depth < this.depthOf(this.zoomNode) ? 0.55 : 1;
    const found = this.found && box.node !== 0 && this.view.frame[box.node] >= 0 && this.found[this.view.frame[box.node]];
    const own = box.node === 0 ? null : this.colorOf(this.view, box.node);
    c.fillStyle = found ? this.find : own ? this.color(own) : this.colors[frame.kind];
    const gap = box.width > 3 ? 1 : 0.2;
    c.fillRect(box.x, y, box.width - gap, ROW - 1);
    if (!found && !own && frame.kind !== NONE) { // neighbours differ a little
      c.globalAlpha *= (hash(frame.name + frame.file) % 5) * 0.045;
      c.fillStyle = this.line;
      c.fillRect(box.x, y, box.width - gap, ROW - 1);
      c.globalAlpha = box.depth < this.depthOf(this.zoomNode) ? 0.55 : 1;
    }
    if (box.width < 26) return;
    c.fillStyle = found ? '#ffffff' : own ? this.color('--on-color') : this.ink;
    if (frame.kind === NONE && !found && !own) c.fillStyle = getComputedStyle(this.canvas).color;
    c.fillText((frame.kind === NONE && box.node !== 0 ? fitMiddle : fit)(c, this.label(box.node), box.width - 11), box.x + 5, y + ROW / 2);
    c.globalAlpha = 1;
  }

  depthOf(node) {
    return this.view.depth[node];
  }

  frame(node) {
    if (node === 0 || this.view.label[node] !== null) return { kind: NONE, name: node === 0 ? this.title : this.view.label[node], file: '', line: 0, source: '' };
    return this.model.frames[this.view.frame[node]];
  }

  label(node) {
    const frame = this.frame(node);
    if (node === 0) return `${this.title}: ${bytesText(this.weight.bytes[0])}`;
    return frame.kind === OWN || frame.kind === LIBRARY ? `${frame.name}  ${place(frame)}` : frame.name;
  }

  boxAt(e) {
    const area = this.canvas.getBoundingClientRect();
    const [x, row] = [e.clientX - area.left, Math.floor((e.clientY - area.top) / ROW)];
    return this.boxes.find((b) => b.depth === row && x >= b.x && x < b.x + b.width);
  }

  point(box) {
    if (!box) this.tip.hidden = true;
    if (box === this.pointed || (!box && !this.pointed)) return;
    this.pointed = box;
    this.draw();
  }

  hover(e) {
    const box = this.boxAt(e);
    if (box) this.pointAt(box, e);
    else this.point(null);
  }

  // pointAt points at a frame, and says what it has.
  pointAt(box, e) {
    if (!(this.pointed && this.pointed.node === box.node)) this.point(box);
    const frame = this.frame(box.node);
    const { bytes, blocks } = this.weight;
    const path = frame.file + (frame.line > 0 ? `:${frame.line}` : '');
    this.tip.replaceChildren(
      el('b', {}, frame.name), path ? el('span', { class: 'path' }, path) : '', frame.source ? el('code', {}, frame.source) : '',
      el('div', { class: 'row' }, el('span', {}, `${bytesText(bytes[box.node])} in ${plural(blocks[box.node], 'block')}`), el('span', {}, exactText(bytes[box.node]))),
      el('div', { class: 'row' }, el('span', {}, 'of all'), el('span', {}, share(bytes[box.node], bytes[0]))),
    );
    placeTip(this.tip, e);
  }
}

// fit cuts a text to a width.
function fit(c, text, width) {
  let n = Math.min(text.length, Math.ceil(width / 3));
  if (n === text.length && c.measureText(text).width <= width) return text;
  let low = 0;
  while (low < n) {
    const middle = (low + n + 1) >> 1;
    if (c.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else n = middle - 1;
  }
  return low < 2 ? '' : `${text.slice(0, low)}…`;
}

// fitMiddle leaves out the middle of a name that is too long: a holder's begins with its line and ends with what tells it from others.
function fitMiddle(c, text, width) {
  const name = text.split(' local ').slice(1).join(' local ') || text;
  for (const t of [text, name]) if (c.measureText(t).width <= width) return t;
  for (let n = name.length - 1; n > 4; n--) {
    const head = Math.floor(n / 3);
    const cut = `${name.slice(0, head)}…${name.slice(head - n)}`;
    if (c.measureText(cut).width <= width) return cut;
  }
  return '';
}

function hash(text) {
  let h = 7;
  for (let i = 0; i < text.length; i++) h = (h * 31 + text.charCodeAt(i)) >>> 0;
  return h;
}

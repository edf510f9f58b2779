// SPDX-License-Identifier: Apache-2.0

// The curve over time, on a canvas.

const SERIES = [
  { name: 'in use', color: '--curve', dot: 'c-total' }, { name: 'torch allocated', color: '--good', dot: 'c-allocated' },
  { name: 'torch reserved', color: '--reserved', dot: 'c-reserved' }, { name: 'from the driver', color: '--driver', dot: 'c-driver' },
];
const PHASES = ['forward', 'backward', 'optimizer'];

const NEAR = 5; // pixels

// RANGE_ALPHA is how much a range covers what is below it.
const RANGE_ALPHA = 0.16;

class CurveView {
  // handlers: at(moment), range(from, to), zoomed().
  constructor(canvas, tip, model, handlers) {
    Object.assign(this, { canvas, tip, model, handlers });
    this.hidden = new Set([0, 1]);
    this.stack = null; // before stacks and groups are there
    const top = (q) => model.curves[0].high[q].reduce((a, b) => (b > a ? b : a), 0);
    for (const q of [2, 3]) if (top(q) > 8 * top(0)) this.hidden.add(q); // beside them nothing else could be seen
    if (top(2) === top(3)) this.hidden.add(3);
    this.part = -1;
    this.selection = { at: 0, from: -1, to: -1 };
    this.course = null;
    this.pad = { left: 66, right: 16, top: 26, bottom: 34 };
    const last = Math.max(model.head.last, 1);
    this.full = [0, last];
    this.window = [0, last];
    this.listen();
  }

  get curve() {
    const several = this.model.curves.length > 1;
    return this.model.curves[several && this.part >= 0 ? this.part + 1 : 0];
  }

  x(time) {
    const [from, to] = this.window;
    return this.pad.left + (time - from) / (to - from) * (this.width - this.pad.left - this.pad.right);
  }

  time(x) {
    const [from, to] = this.window;
    return from + (x - this.pad.left) / (this.width - this.pad.left - this.pad.right) * (to - from);
  }

  y(bytes) {
    return this.height - this.pad.bottom - bytes / this.top * (this.height - this.pad.top - this.pad.bottom);
  }

  draw() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    const c = this.canvas.getContext('2d');
    c.scale(scale, scale);
    this.style = getComputedStyle(document.documentElement);
    this.scaleY();
    this.drawAxes(c);
    c.save();
    c.beginPath();
    c.rect(this.pad.left, 0, this.width - this.pad.left - this.pad.right, this.height - this.pad.bottom + 1);
    c.clip();
    this.drawHoles(c);
    if (this.stack) this.drawStack(c);
    else this.drawSeries(c, 0, true);
    this.drawSteps(c);
    this.drawRange(c);
    SERIES.forEach((s, q) => this.drawSeries(c, q));
    this.drawCapacity(c);
    this.drawMoment(c);
    c.restore();
    this.drawPhases(c);
    this.drawMarks(c);
    this.describe();
  }

  // describe says in words what is drawn.
  describe() {
    const { at, from, to } = this.selection;
    const i = from < 0 ? at : to;
    this.canvas.setAttribute('aria-valuemax', this.model.moments.length - 1);
    this.canvas.setAttribute('aria-valuenow', i);
    const total = this.model.totals ? `, ${bytesText(this.model.totals[i])} in use` : '';
    this.canvas.setAttribute('aria-valuetext', `${seconds(this.model.moments[i] - this.model.head.start)}${total}`);
  }

  // capacity is that of the devices that are shown; 0: not known.
  get capacity() {
    const of = new Map();
    this.model.head.parts.forEach((p, i) => {
      if ((this.part < 0 ? this.model.notable(i) : this.part === i)) of.set(p.device, p.capacity);
    });
    const all = [...of.values()];
    return all.length > 0 && all.every((v) => v > 0) ? all.reduce((a, b) => a + b, 0) : 0;
  }

  color(name) {
    return this.style.getPropertyValue(name).trim();
  }

  // inside are the points of the window, with one more on each side.
  inside() {
    const t = this.curve.time;
    let from = 0;
    while (from + 1 < t.length && t[from + 1] < this.window[0]) from++;
    let to = t.length - 1;
    while (to > from && t[to - 1] > this.window[1]) to--;
    return [from, to];
  }

  scaleY() {
    const [from, to] = this.inside();
    let top = 0;
    SERIES.forEach((_, q) => {
      if (this.hidden.has(q)) return;
      for (let i = from; i <= to; i++) if (this.curve.high[q][i] > top) top = this.curve.high[q][i];
    });
    const { high } = this.curve;
    for (let i = from; i <= to; i++) if (high[0][i] > top) top = high[0][i];
    if (this.stack) top = Math.max(top, ...this.buckets().map((b) => this.stack.total[b.high]), 0);
    if (this.capacity > 0 && this.capacity <= 2.5 * top) top = Math.max(top, this.capacity);
    top = Math.max(top, 1024);
    this.step = 2 ** Math.ceil(Math.log2(top / 5));
    this.top = Math.max(top * 1.04, this.step);
  }

  drawAxes(c) {
    c.font = '11px system-ui, sans-serif';
    c.lineWidth = 1;
    c.textAlign = 'right';
    c.textBaseline = 'middle';
    for (let v = 0; v <= this.top; v += this.step) {
      const y = Math.round(this.y(v)) + 0.5;
      c.strokeStyle = this.color('--line');
      c.beginPath();
      c.moveTo(this.pad.left, y);
      c.lineTo(this.width - this.pad.right, y);
      c.stroke();
      c.fillStyle = this.color('--faint');
      c.fillText(v === 0 ? '0' : bytesText(v).replace('.0 ', ' '), this.pad.left - 8, y);
    }
    c.textAlign = 'center';
    c.textBaseline = 'top';
    const start = this.model.head.start;
    const [from, to] = [this.window[0] - start, this.window[1] - start];
    const rough = (to - from) / Math.max(2, (this.width - 80) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step / 1e9) + 1e-9));
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const x = this.x(t + start);
      if (x < this.pad.left + 14 || x > this.width - this.pad.right - 14) continue;
      c.fillText(seconds(t, digits), x, this.height - this.pad.bottom + 17);
    }
  }

  // columns are the bounds of a quantity in each column of so many pixels in which it changes.
  columns(q, size) {
    const { time, low, high, last } = this.curve;
    const [from, to] = this.inside();
    const out = [];
    for (let i = from; i <= to; i++) {
      if (Number.isNaN(last[q][i])) continue;
      const x = Math.round(this.x(time[i]) / size) * size;
      const c = out[out.length - 1];
      if (c && c.x === x) {
        c.low = Math.min(c.low, low[q][i]);
        c.high = Math.max(c.high, high[q][i]);
        c.last = last[q][i];
      } else {
        out.push({ x, low: low[q][i], high: high[q][i], last: last[q][i] });
      }
    }
    return out;
  }

  // drawSeries draws steps: what was last holds until the next point.
  drawSeries(c, q, always = false) {
    if (this.hidden.has(q) && !always) return;
    let columns = this.columns(q, 1);
    if (columns.length === 0) return;
    const dense = isDense(columns);
    if (dense) columns = this.columns(q, 3);
    const line = new Path2D();
    const area = new Path2D();
    let y = this.y(columns[0].low);
    line.moveTo(columns[0].x, y);
    area.moveTo(columns[0].x, this.y(0));
    for (const { x, low, high, last } of columns) {
      if (!dense) {
        line.lineTo(x, y);
        area.lineTo(x, y);
      }
      if (dense) {
        line.lineTo(x, this.y(high));
      } else if (low !== high) {
        line.lineTo(x, this.y(low));
        line.lineTo(x, this.y(high));
      }
      y = this.y(last);
      if (!dense) line.lineTo(x, y);
      area.lineTo(x, dense ? this.y(high) : y);
    }
    const right = Math.min(this.x(this.full[1]), this.width);
    line.lineTo(right, y);
    area.lineTo(right, y);
    area.lineTo(right, this.y(0));
    if (q === 0) {
      c.fillStyle = this.color('--fill');
      c.fill(area);
    }
    if (dense) this.drawBand(c, q, columns);
    c.strokeStyle = this.color(SERIES[q].color);
    c.lineWidth = q === 0 ? 1.5 : 1.25;
    c.lineJoin = 'bevel';
    c.stroke(line);
  }

  // drawBand fills what is between the lowest and the highest, where there is a change in every column: lines would be a block.
  drawBand(c, q, columns) {
    const band = new Path2D();
    columns.forEach(({ x, high }) => band.lineTo(x, this.y(high)));
    columns.reverse().forEach(({ x, low }) => band.lineTo(x, this.y(low)));
    c.globalAlpha = 0.4;
    c.fillStyle = this.color(SERIES[q].color);
    c.fill(band);
    c.globalAlpha = 1;
  }

  // buckets are the moments to draw: of each so many pixels the one with the least and the one with the most. Where memory goes up and down
  // faster than can be seen, they are wider, so that the lowest and the highest are lines and not a comb.
  buckets() {
    const key = [this.stack.total, ...this.window, this.width];
    if (this.kept && key.every((v, i) => v === this.kept.key[i])) return this.kept.list;
    let list = [];
    for (const width of [0, 3, 6, 12, 24, 48]) {
      list = this.bucketsOf(width);
      if (list.length < 3 || turns(list.map((b) => this.stack.total[b.high]), this.stack.total[list.reduce((m, b) => (this.stack.total[b.high] > this.stack.total[m] ? b.high : m), 0)]) < this.width / 30) break;
    }
    this.kept = { key, list };
    return list;
  }

  // bucketsOf goes on with a bucket until there is a moment of both kinds in it: the lowest of a stretch is no highest.
  bucketsOf(width) {
    const { moments, head } = this.model;
    const { total } = this.stack;
    const [from, to] = [Math.max(0, above(moments, this.window[0]) - 1), Math.min(moments.length - 1, above(moments, this.window[1]))];
    const list = [];
    let seen = 0;
    for (let i = from; i <= to; i++) {
      const x = this.x(moments[i]);
      const bucket = list[list.length - 1];
      const same = bucket && width > 0 && (Math.floor(x / width) === Math.floor(bucket.left / width) || (seen !== KIND_BOTH && !head.exact && x - bucket.left < 60));
      if (same) {
        if (total[i] < total[bucket.low]) bucket.low = i;
        if (total[i] >= total[bucket.high]) bucket.high = i;
        bucket.right = x;
      } else {
        list.push({ left: x, right: x, low: i, high: i });
        seen = 0;
      }
      seen |= head.moments.kind[i] & KIND_BOTH;
    }
    return list;
  }

  // drawStack fills what is there at the lowest of each stretch, and lighter what is there at the highest.
  drawStack(c) {
    const list = this.buckets();
    if (list.length === 0) return;
    const single = list.every((b) => b.low === b.high);
    if (!single) this.drawLayers(c, list, 'high', 0.38, false);
    this.drawLayers(c, list, 'low', 1, single);
    const line = new Path2D();
    this.outline(line, list, 'high', (i) => this.stack.total[i], single);
    c.strokeStyle = this.color('--curve');
    c.lineWidth = 1;
    c.lineJoin = 'bevel';
    c.stroke(line);
    if (this.stack.filtered) this.drawWhole(c, list, single);
  }

  // drawWhole is the line of all memory, above what is filtered.
  drawWhole(c, list, single) {
    const line = new Path2D();
    this.outline(line, list, 'high', (i) => this.model.totals[i], single);
    c.strokeStyle = this.color('--faint');
    c.setLineDash([3, 3]);
    c.stroke(line);
    c.setLineDash([]);
  }

  drawLayers(c, list, end, alpha, steps) {
    const below = new Float64Array(list.length);
    const base = new Map(list.map((b, i) => [b, i]));
    this.stack.layers.forEach((layer, l) => {
      const course = this.stack.courses[l];
      const area = new Path2D();
      const at = (b) => below[base.get(b)];
      this.outline(area, list, end, (i, b) => at(b) + Math.max(0, course[i]), steps);
      this.outline(area, list, end, (i, b) => at(b), steps, true);
      area.closePath();
      c.globalAlpha = alpha;
      c.fillStyle = this.color(layer.color);
      c.fill(area);
      c.globalAlpha = 1;
      list.forEach((b, n) => { below[n] += Math.max(0, course[b[end]]); });
    });
  }

  // outline goes along the moments of buckets: from the middle of one to the next, and in steps where each is one moment or they are far apart.
  outline(path, list, end, bytes, steps, back = false) {
    const right = Math.min(this.x(this.full[1]), this.width - this.pad.right);
    const points = [];
    list.forEach((b, n) => {
      const [y, last] = [this.y(bytes(b[end], b)), points[points.length - 1]];
      const x = steps ? b.left : (b.left + b.right) / 2;
      if (last && (steps || b.left - list[n - 1].right > 12)) points.push([b.left, last[1]]);
      points.push([x, y]);
    });
    points.push([right, points[points.length - 1][1]]);
    for (const [x, y] of back ? points.reverse() : points) path.lineTo(x, y);
  }

  drawCapacity(c) {
    const { capacity } = this;
    if (capacity === 0) return;
    c.font = '600 11px system-ui, sans-serif';
    c.textAlign = 'left';
    c.fillStyle = c.strokeStyle = this.color('--bad');
    const left = this.pad.left + 6;
    if (capacity > this.top) {
      c.textBaseline = 'top';
      c.fillText(`↑ ${bytesText(capacity)} device`, left, this.pad.top + 3);
      return;
    }
    const y = Math.round(this.y(capacity)) + 0.5;
    c.setLineDash([6, 4]);
    c.lineWidth = 1.25;
    c.beginPath();
    c.moveTo(this.pad.left, y);
    c.lineTo(this.width - this.pad.right, y);
    c.stroke();
    c.setLineDash([]);
    c.textBaseline = y > this.pad.top + 16 ? 'bottom' : 'top';
    c.fillText(`device ${bytesText(capacity)}`, left, y + (y > this.pad.top + 16 ? -2 : 3));
  }

  // drawSteps shades every second step, where they are wide enough to be seen.
  drawSteps(c) {
    const begin = this.model.steps;
    if (begin.length < 2) return;
    const from = Math.max(0, above(begin, this.window[0]) - 1);
    const to = Math.min(begin.length - 1, above(begin, this.window[1]));
    const wide = (this.x(begin[to]) - this.x(begin[from])) / Math.max(1, to - from);
    if (wide < 8) return;
    c.font = '10px system-ui, sans-serif';
    c.textAlign = 'left';
    c.textBaseline = 'top';
    for (let i = from; i <= to; i++) {
      const left = this.x(begin[i]);
      const right = i + 1 < begin.length ? this.x(begin[i + 1]) : this.x(this.full[1]);
      const number = this.model.head.steps.first + i;
      c.fillStyle = this.color('--band');
      if (number % 2 === 0) c.fillRect(left, this.pad.top, right - left, this.height - this.pad.top - this.pad.bottom);
      if (wide > 46) {
        c.fillStyle = this.color('--soft');
        c.fillText(`step ${number}`, Math.max(left, this.pad.left) + 3, this.height - this.pad.bottom - 14);
      }
    }
  }

  // drawPhases is a lane below the axis, in which each phase has a colour.
  drawPhases(c) {
    const spans = this.model.phases || [];
    const [left, right] = [this.pad.left, this.width - this.pad.right];
    this.phasesShown = false;
    const from = Math.max(0, above(spans, this.window[0], (p) => p.from) - 1);
    const to = above(spans, this.window[1], (p) => p.from);
    if (to - from < 1 || to - from > right - left) return; // narrower than a pixel
    this.phasesShown = true;
    for (let i = from; i < to; i++) {
      const color = PHASES.indexOf(spans[i].name);
      if (color < 0) continue;
      const x = Math.max(left, this.x(spans[i].from));
      c.fillStyle = this.color(`--p${color + 1}`);
      c.fillRect(x, this.height - this.pad.bottom + 4, Math.max(1, Math.min(right, this.x(spans[i].to)) - x), 7);
    }
  }

  // drawHoles marks when events were lost.
  drawHoles(c) {
    for (const h of this.model.head.losses.lossIntervals) {
      const [left, right] = [Math.max(this.x(h.from), this.pad.left), Math.min(this.x(h.to), this.width - this.pad.right)];
      if (left > right) continue;
      c.globalAlpha = RANGE_ALPHA;
      c.fillStyle = this.color('--bad');
      c.fillRect(left, this.pad.top, Math.max(1, right - left), this.height - this.pad.top - this.pad.bottom);
      c.globalAlpha = 1;
      c.fillRect(left, this.pad.top, Math.max(1, right - left), 2);
    }
  }

  drawRange(c) {
    const { from, to } = this.selection;
    if (from < 0) return;
    const [left, right] = [this.x(this.model.moments[from]), this.x(this.model.moments[to])];
    c.globalAlpha = RANGE_ALPHA; // what is below it stays visible
    c.fillStyle = this.color('--accent');
    c.fillRect(left, this.pad.top, Math.max(1, right - left), this.height - this.pad.top - this.pad.bottom);
    c.globalAlpha = 1;
    c.fillRect(left, this.pad.top, 1, this.height - this.pad.top - this.pad.bottom);
    c.fillRect(right, this.pad.top, 1, this.height - this.pad.top - this.pad.bottom);
  }

  drawMoment(c) {
    const { at, from } = this.selection;
    if (from >= 0) return;
    const x = Math.round(this.x(this.model.moments[at])) + 0.5;
    c.strokeStyle = this.color('--accent');
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(x, this.pad.top);
    c.lineTo(x, this.height - this.pad.bottom);
    c.stroke();
  }

  // drawMarks labels peaks and refused requests above the curve.
  drawMarks(c) {
    c.font = '600 11px system-ui, sans-serif';
    c.textBaseline = 'middle';
    this.marks = [];
    const taken = [];
    const label = (time, text, color, moment) => {
      const x = this.x(time);
      if (x < this.pad.left - 1 || x > this.width - this.pad.right + 1) return false;
      const width = c.measureText(text).width + 12;
      const left = text === '' ? undefined : this.freePlace(x, width, taken);
      const clash = left === undefined;
      c.fillStyle = this.color(color);
      c.beginPath();
      c.moveTo(x - 4, 18);
      c.lineTo(x + 4, 18);
      c.lineTo(x, 24);
      c.fill();
      this.marks.push({ from: clash ? x - 6 : left, to: clash ? x + 6 : left + width, moment });
      if (clash) return false;
      taken.push([left, left + width]);
      c.beginPath();
      c.roundRect(left, 2, width, 17, 4);
      c.fill();
      c.fillStyle = this.color('--card');
      c.textAlign = 'left';
      c.fillText(text, left + 6, 11);
      return true;
    };
    this.model.head.parts.forEach((p, i) => {
      if (p.peakMoment < 0 || !this.model.notable(i) || (this.part >= 0 && this.part !== i)) return;
      const name = this.model.head.parts.length > 1 && this.part < 0 ? ` ${this.model.partName(i)}` : '';
      label(this.model.moments[p.peakMoment], `${p.torch ? 'PyTorch peak' : 'peak'}${name} ${bytesText(p.peak)}`, '--accent', p.peakMoment);
    });
    let named = false; // one name is enough
    for (const r of this.model.head.ooms) {
      if (this.part < 0 || this.part === r.part) named = label(r.time, named ? '' : 'out of memory', '--bad', r.moment) || named;
    }
  }

  // freePlace is where a label fits: above its place, or else beside the label that is there. undefined: nowhere.
  freePlace(x, width, taken) {
    const [least, most] = [this.pad.left, this.width - this.pad.right - width];
    const middle = Math.min(Math.max(x - width / 2, least), most);
    const beside = taken.filter(([a, b]) => x > a - width && x < b + width).flatMap(([a, b]) => [a - width - 4, b + 4]);
    return [middle, ...beside].find((left) => left >= least && left <= most && !taken.some(([a, b]) => left < b + 3 && left + width > a - 3));
  }

  listen() {
    const at = (e) => e.clientX - this.canvas.getBoundingClientRect().left;
    let down = NaN;
    this.canvas.addEventListener('pointerdown', (e) => {
      if (e.button !== 0) return;
      down = at(e);
      this.tip.hidden = true;
      this.canvas.setPointerCapture(e.pointerId);
    });
    this.canvas.addEventListener('pointermove', (e) => {
      if (!Number.isNaN(down) && Math.abs(at(e) - down) > 4) {
        const [from, to] = [this.lowest(Math.min(down, at(e))), this.lowest(Math.max(down, at(e)))];
        this.selection = { at: to, from, to };
        this.draw();
      }
      if (Number.isNaN(down)) this.hover(e, at(e));
    });
    this.canvas.addEventListener('pointerup', (e) => {
      if (Number.isNaN(down)) return;
      const [left, right] = [Math.min(down, at(e)), Math.max(down, at(e))];
      down = NaN;
      const [from, to] = [this.lowest(left), this.lowest(right)];
      if (right - left > 4 && from < to) this.handlers.range(from, to);
      else this.handlers.at(this.markAt(e) ?? this.pointed(e));
    });
    this.canvas.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    this.canvas.addEventListener('wheel', (e) => {
      const factor = e.deltaY < 0 ? 0.8 : 1.25;
      if (factor > 1 && this.zoomedOut()) return;
      e.preventDefault();
      const t = this.time(at(e));
      this.zoom(t - (t - this.window[0]) * factor, t + (this.window[1] - t) * factor);
    }, { passive: false });
  }

  markAt(e) {
    const box = this.canvas.getBoundingClientRect();
    if (e.clientY - box.top > 25) return undefined;
    const x = e.clientX - box.left;
    const mark = this.marks.find((m) => x >= m.from && x <= m.to && m.moment >= 0);
    return mark && mark.moment;
  }

  // near are the moments that are drawn close to a place; the nearest one, if none is.
  near(x) {
    const [from, to] = [this.time(x - NEAR), this.time(x + NEAR)];
    const list = [];
    for (let i = this.model.nearest(from); i < this.model.moments.length && this.model.moments[i] <= to; i++) {
      if (this.model.moments[i] >= from) list.push(i);
    }
    return list.length > 0 && this.model.totals ? list : [this.model.nearest(this.time(x))];
  }

  // lowest is where a range ends: in the middle of a step everything would seem to leak.
  lowest(x) {
    const { totals } = this.model;
    return this.near(x).reduce((best, i) => (totals && totals[i] < totals[best] ? i : best));
  }

  // pointed is the moment whose figure is nearest to the pointer: a click on a top of the curve chooses the top.
  pointed(e) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [e.clientX - box.left, e.clientY - box.top];
    const of = this.stack ? this.stack.total : this.model.totals;
    const far = (i) => (of ? Math.hypot(this.x(this.model.moments[i]) - x, this.y(of[i]) - y) : 0);
    return this.near(x).reduce((best, i) => (far(i) < far(best) ? i : best));
  }

  zoomedOut() {
    return this.window[0] <= this.full[0] && this.window[1] >= this.full[1];
  }

  zoom(from, to) {
    const least = Math.max(1000, (this.full[1] - this.full[0]) / 1e6);
    if (to - from < least) to = from + least;
    this.window = [Math.max(from, this.full[0]), Math.min(to, this.full[1])];
    if (this.window[1] - this.window[0] < least) this.window[0] = Math.max(0, this.window[1] - least);
    this.handlers.zoomed();
    this.draw();
  }

  hover(e, x) {
    const t = Math.min(Math.max(this.time(x), this.full[0]), this.full[1]);
    const { time, last } = this.curve;
    let i = time.length - 1;
    while (i > 0 && time[i] > t) i--;
    const row = (name, bytes, color) => el('div', { class: 'row' }, el('span', {}, color ? swatch(color) : '', name), el('span', {}, bytesText(bytes)));
    const rows = SERIES.flatMap((s, q) => (this.hidden.has(q) || i < 0 ? [] : [row(s.name, last[q][i])]));
    const step = this.model.stepAt(t);
    const head = [seconds(t - this.model.head.start), step > 0 ? `step ${step}` : '', this.phasesShown ? this.model.phaseAt(t) : ''];
    if (this.stack) {
      const m = this.pointed(e);
      head[0] = seconds(this.model.moments[m] - this.model.head.start);
      const layers = this.stack.layers.map((layer, l) => [layer, this.stack.courses[l][m]]).filter(([, bytes]) => bytes > 0).reverse();
      rows.unshift(row(this.stack.filtered ? 'chosen' : 'in use', this.stack.total[m]), ...layers.slice(0, 11).map(([layer, bytes]) => row(layer.name, bytes, layer.color)));
    } else if (i >= 0) {
      rows.unshift(row('in use', last[0][i]));
    }
    this.tip.replaceChildren(el('b', {}, head.filter(Boolean).join(' · ')), ...rows);
    placeTip(this.tip, e, this.canvas);
  }
}

// turns counts how often a line goes up and down by more than a twelfth of its height.
function turns(values, most) {
  let [n, up, from] = [0, true, values[0]];
  for (const v of values) {
    if (up ? v > from : v < from) from = v;
    else if (Math.abs(v - from) > most / 12) {
      n++;
      up = !up;
      from = v;
    }
  }
  return n;
}

function swatch(color) {
  const i = el('i', { class: 'swatch' });
  i.style.background = `var(${color})`;
  return i;
}

// isDense says whether lines would be a block of colour: most columns go up and down by more than half of all there is.
function isDense(columns) {
  const least = columns.reduce((n, c) => Math.min(n, c.low), Infinity);
  const most = columns.reduce((n, c) => Math.max(n, c.high), 0);
  const wide = columns.filter((c) => c.high - c.low > (most - least) / 2).length;
  return columns.length > 100 && wide > 0.6 * columns.length;
}

// placeTip shows a tip beside the pointer. It is over everything, so that no panel cuts it, and inside of the window.
function placeTip(tip, e) {
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = e.clientX + 16 + width > innerWidth - 8 ? Math.max(8, e.clientX - 16 - width) : e.clientX + 16;
  const top = e.clientY + 14 + height > innerHeight - 8 ? Math.max(8, e.clientY - 14 - height) : e.clientY + 14;
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

// SPDX-License-Identifier: Apache-2.0

// The curve over time, on a canvas.

const SERIES = [
  { name: 'in use', color: '--curve', dot: 'c-total area' }, { name: 'torch allocated', color: '--good', dot: 'c-allocated' },
  { name: 'torch reserved', color: '--reserved', dot: 'c-reserved' }, { name: 'device', color: '--driver', dot: 'c-driver' },
];

const NEAR = 5; // pixels

class CurveView {
  // handlers: at(moment), range(from, to), zoomed().
  constructor(canvas, tip, model, handlers) {
    Object.assign(this, { canvas, tip, model, handlers });
    this.hidden = new Set([1]);
    const top = (q) => model.curves[0].high[q].reduce((a, b) => (b > a ? b : a), 0);
    for (const q of [2, 3]) if (top(q) > 8 * top(0)) this.hidden.add(q); // beside them nothing else could be seen
    this.part = -1;
    this.selection = { at: 0, from: -1, to: -1 };
    this.course = null;
    this.pad = { left: 66, right: 16, top: 26, bottom: 24 };
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
    this.drawRange(c);
    SERIES.forEach((s, q) => this.drawSeries(c, q));
    this.drawCourse(c);
    this.drawMoment(c);
    c.restore();
    this.drawMarks(c);
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
      c.fillText(seconds(t, digits), x, this.height - this.pad.bottom + 8);
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
  drawSeries(c, q) {
    if (this.hidden.has(q)) return;
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

  // drawCourse draws what the filters choose, at the moments.
  drawCourse(c) {
    if (!this.course) return;
    c.beginPath();
    this.model.moments.forEach((t, i) => {
      if (i > 0) c.lineTo(this.x(t), this.y(this.course[i - 1]));
      c.lineTo(this.x(t), this.y(this.course[i]));
    });
    c.strokeStyle = this.color('--match');
    c.lineWidth = 1.5;
    c.stroke();
  }

  // drawHoles marks when events were lost.
  drawHoles(c) {
    for (const h of this.model.head.losses.lossIntervals) {
      const [left, right] = [Math.max(this.x(h.from), this.pad.left), Math.min(this.x(h.to), this.width - this.pad.right)];
      if (left > right) continue;
      c.fillStyle = this.color('--bad-soft');
      c.fillRect(left, this.pad.top, Math.max(1, right - left), this.height - this.pad.top - this.pad.bottom);
      c.fillStyle = this.color('--bad');
      c.fillRect(left, this.pad.top, Math.max(1, right - left), 2);
    }
  }

  drawRange(c) {
    const { from, to } = this.selection;
    if (from < 0) return;
    const [left, right] = [this.x(this.model.moments[from]), this.x(this.model.moments[to])];
    c.fillStyle = this.color('--accent-soft');
    c.fillRect(left, this.pad.top, Math.max(1, right - left), this.height - this.pad.top - this.pad.bottom);
    c.fillStyle = this.color('--accent');
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
      label(this.model.moments[p.peakMoment], `peak${name} ${bytesText(p.peak)}`, '--accent', p.peakMoment);
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
      this.canvas.setPointerCapture(e.pointerId);
    });
    this.canvas.addEventListener('pointermove', (e) => {
      if (!Number.isNaN(down) && Math.abs(at(e) - down) > 4) {
        const [from, to] = [this.lowest(Math.min(down, at(e))), this.lowest(Math.max(down, at(e)))];
        this.selection = { at: to, from, to };
        this.draw();
      }
      this.hover(e, at(e));
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
    const far = (i) => (this.model.totals ? Math.hypot(this.x(this.model.moments[i]) - x, this.y(this.model.totals[i]) - y) : 0);
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
    const rows = SERIES.map((s, q) => (this.hidden.has(q) || i < 0 ? null
      : el('div', { class: 'row' }, el('span', {}, s.name), el('span', {}, bytesText(last[q][i])))));
    this.tip.replaceChildren(el('b', {}, seconds(t - this.model.head.start)), ...rows.filter(Boolean));
    placeTip(this.tip, e, this.canvas);
  }
}

// isDense says whether lines would be a block of colour: most columns go up and down by more than half of all there is.
function isDense(columns) {
  const least = columns.reduce((n, c) => Math.min(n, c.low), Infinity);
  const most = columns.reduce((n, c) => Math.max(n, c.high), 0);
  const wide = columns.filter((c) => c.high - c.low > (most - least) / 2).length;
  return columns.length > 100 && wide > 0.6 * columns.length;
}

// placeTip shows a tip beside the pointer, inside the box of a canvas.
function placeTip(tip, e, canvas) {
  tip.hidden = false;
  const box = canvas.getBoundingClientRect();
  const x = e.clientX - box.left;
  const y = e.clientY - box.top;
  const left = x + 16 + tip.offsetWidth > box.width ? Math.max(0, x - 16 - tip.offsetWidth) : x + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(0, y + 14)}px`;
}

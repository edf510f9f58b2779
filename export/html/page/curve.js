// The curve over time, on a canvas.

const SERIES = [
  { name: 'in use', color: '--curve', dot: 'c-total area' }, { name: 'torch allocated', color: '--good', dot: 'c-allocated' },
  { name: 'torch reserved', color: '--reserved', dot: 'c-reserved' }, { name: 'driver', color: '--driver', dot: 'c-driver' },
];

class CurveView {
  // handlers: at(moment), range(from, to), zoomed().
  constructor(canvas, tip, model, handlers) {
    Object.assign(this, { canvas, tip, model, handlers });
    this.hidden = new Set([1]);
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

  // drawSeries draws steps: what was last holds until the next point.
  drawSeries(c, q) {
    if (this.hidden.has(q)) return;
    const { time, low, high, last } = this.curve;
    const [from, to] = this.inside();
    const path = new Path2D();
    let begun = NaN;
    let y = 0;
    for (let i = from; i <= to; i++) {
      if (Number.isNaN(last[q][i])) continue;
      const x = this.x(time[i]);
      if (Number.isNaN(begun)) {
        begun = x;
        path.moveTo(x, this.y(low[q][i]));
      } else {
        path.lineTo(x, y);
        if (low[q][i] !== high[q][i]) {
          path.lineTo(x, this.y(low[q][i]));
          path.lineTo(x, this.y(high[q][i]));
        }
      }
      y = this.y(last[q][i]);
      path.lineTo(x, y);
    }
    if (Number.isNaN(begun)) return;
    const right = Math.min(this.x(this.full[1]), this.width);
    path.lineTo(right, y);
    c.strokeStyle = this.color(SERIES[q].color);
    c.lineWidth = q === 0 ? 1.5 : 1.25;
    c.lineJoin = 'round';
    c.stroke(path);
    if (q !== 0) return;
    path.lineTo(right, this.y(0));
    path.lineTo(begun, this.y(0));
    c.fillStyle = this.color('--fill');
    c.fill(path);
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
      if (x < this.pad.left - 1 || x > this.width - this.pad.right + 1) return;
      const width = c.measureText(text).width + 12;
      const left = Math.min(Math.max(x - width / 2, this.pad.left), this.width - this.pad.right - width);
      const clash = taken.some(([a, b]) => left < b + 3 && left + width > a - 3);
      c.fillStyle = this.color(color);
      c.beginPath();
      c.moveTo(x - 4, 18);
      c.lineTo(x + 4, 18);
      c.lineTo(x, 24);
      c.fill();
      this.marks.push({ from: clash ? x - 6 : left, to: clash ? x + 6 : left + width, moment });
      if (clash) return;
      taken.push([left, left + width]);
      c.beginPath();
      c.roundRect(left, 2, width, 17, 4);
      c.fill();
      c.fillStyle = this.color('--card');
      c.textAlign = 'left';
      c.fillText(text, left + 6, 11);
    };
    this.model.head.refusals.forEach((r) => {
      if (this.part < 0 || this.part === r.part) label(r.time, 'out of memory', '--bad', r.moment);
    });
    this.model.head.parts.forEach((p, i) => {
      if (p.peakMoment < 0 || p.peak <= 0 || (this.part >= 0 && this.part !== i)) return;
      const name = this.model.head.parts.length > 1 && this.part < 0 ? ` ${this.model.partName(i)}` : '';
      label(this.model.moments[p.peakMoment], `peak${name} ${bytesText(p.peak)}`, '--accent', p.peakMoment);
    });
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
        const [from, to] = [this.snap(Math.min(down, at(e))), this.snap(Math.max(down, at(e)))];
        this.selection = { at: to, from, to };
        this.draw();
      }
      this.hover(e, at(e));
    });
    this.canvas.addEventListener('pointerup', (e) => {
      if (Number.isNaN(down)) return;
      const [left, right] = [Math.min(down, at(e)), Math.max(down, at(e))];
      down = NaN;
      const [from, to] = [this.snap(left), this.snap(right)];
      if (right - left > 4 && from < to) this.handlers.range(from, to);
      else this.handlers.at(this.markAt(e) ?? this.snap(at(e)));
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

  snap(x) {
    return this.model.nearest(this.time(x));
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
    this.tip.replaceChildren(el('b', {}, seconds(t - this.model.head.start, 3)), ...rows.filter(Boolean));
    placeTip(this.tip, e, this.canvas);
  }
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

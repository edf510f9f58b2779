// SPDX-License-Identifier: Apache-2.0

// The table of what the flame graph shows, by line, function, file, thread and so on.

const GROUPINGS = {
  holder: { name: 'Holder', split: true, of: (m, g) => [m.groups.holder[g], plain(m.text[m.groups.holder[g]])] },
  category: { name: 'Category', split: true, of: (m, g) => [m.groups.for[g], plain(m.text[m.groups.for[g]])] },
  line: { name: 'Line', of: (m, g) => [m.groups.own[g], m.frames[m.groups.own[g]]] },
  function: {
    name: 'Function',
    of: (m, g) => {
      const f = m.frames[m.groups.own[g]];
      return [`${f.kind} ${f.name}\n${f.file}`, { ...f, line: 0, source: '' }];
    },
  },
  file: {
    name: 'File',
    of: (m, g) => {
      const f = m.frames[m.groups.own[g]];
      return [f.file || f.name, { kind: f.file ? f.kind : NONE, name: f.file || f.name, file: f.file, line: 0, source: '' }];
    },
  },
  phase: { split: true, name: 'Phase', of: (m, g) => [m.groups.phase[g], plain(m.text[m.groups.phase[g]])] },
  thread: { split: true, name: 'Thread', of: (m, g) => [m.groups.thread[g], plain(threadText(m, m.groups.thread[g]))] },
  size: { name: 'Block size', of: (m, g) => [m.groups.class[g], plain(classText(m.groups.class[g]))] },
  device: { split: true, name: 'Device', of: (m, g) => [m.groups.part[g], plain(m.partName(m.groups.part[g]))] },
  memory: { split: true, name: 'Memory', of: (m, g) => [m.groups.memory[g], plain(MEMORIES[m.groups.memory[g]])] },
};
const NAME_TAIL = 16; // characters at the end of a name that are always shown
const FIRST_ROWS = 100;
const COURSES = 300; // rows whose course is drawn

// narrowName leaves out the line and the function of a variable on a narrow screen.
function narrowName(name) {
  return window.innerWidth > 720 ? name : name.split(' local ').slice(1).join(' local ') || name;
}

function plain(name) {
  return { kind: NONE, name, file: '', line: 0, source: '' };
}

function threadText(model, tid) {
  if (tid === 0) return 'unknown';
  return `${tid}${model.head.parts.some((p) => p.pid === tid) ? ' (main)' : ''}`;
}

class TableView {
  // handlers: chosen(row): a row was clicked.
  constructor(root, handlers) {
    Object.assign(this, { head: root.table.tHead, body: root.table.tBodies[0], more: root.more, counter: root.counter, handlers });
    this.by = 'line';
    this.sort = { column: 'value', down: true };
    this.all = false;
    this.more.addEventListener('click', () => {
      this.all = true;
      this.draw();
    });
  }

  // show makes rows of the groups that have something.
  show(model, sums, state, chosen, stack, mask) {
    Object.assign(this, { model, sums, state, chosen, stack, mask });
    const rows = new Map();
    const measures = state.from < 0 ? ['live'] : ['live', 'allocated', 'kept'];
    for (let g = 0; g < model.count; g++) {
      if (!measures.some((m) => sums[m].blocks[g] > 0 || sums[m].bytes[g] !== 0)) continue;
      const [key, frame] = GROUPINGS[this.by].of(model, g);
      let row = rows.get(key);
      if (!row) rows.set(key, row = { key, frame, groups: [], bytes: { live: 0, allocated: 0, kept: 0 }, blocks: { live: 0, allocated: 0, kept: 0 }, unsized: { live: 0, allocated: 0, kept: 0 } });
      row.groups.push(g);
      for (const m of measures) {
        row.bytes[m] += sums[m].bytes[g];
        row.blocks[m] += sums[m].blocks[g];
        if (model.unsized(g)) row.unsized[m] += sums[m].blocks[g];
      }
      if (model.unknownBlocks(g, sums.live.bytes[g], sums.live.blocks[g])) row.unknown = true;
    }
    this.rows = [...rows.values()];
    this.total = this.rows.reduce((sum, r) => sum + r.bytes[state.measure], 0);
    this.addCourses();
    this.draw();
  }

  // addCourses computes how the rows went on, of the largest of each column.
  addCourses() {
    for (const r of this.rows) Object.assign(r, { course: null, growth: 0 });
    const of = new Int32Array(this.model.count).fill(-1);
    const rows = [...this.rows].sort((a, b) => Math.abs(b.bytes[this.state.measure]) - Math.abs(a.bytes[this.state.measure])).slice(0, COURSES);
    rows.forEach((r, i) => r.groups.forEach((g) => { of[g] = i; }));
    this.model.courses(of, rows.length, this.mask).forEach((course, i) => {
      rows[i].course = course.subarray(0, this.model.moments.length);
      rows[i].growth = growthOf(this.model.moments, rows[i].course, this.model.steps);
    });
  }

  columns() {
    const m = this.state.measure;
    const name = this.by === 'line'
      ? { id: 'place', name: 'Line', of: (r) => place(r.frame), cell: (r) => this.nameCell(r, placeText(r.frame)) }
      : { id: 'name', name: GROUPINGS[this.by].name, of: (r) => r.frame.name, cell: (r) => this.nameCell(r, r.frame.name) };
    const columns = [name];
    if (this.state.from >= 0) {
      const names = { kept: 'Kept', allocated: 'Allocated', live: 'In use at the end' };
      for (const id of [m, ...Object.keys(names).filter((k) => k !== m)]) {
        columns.push({
          id: id === m ? 'value' : id, name: names[id], number: true, of: (r) => r.bytes[id],
          cell: (r) => bytesCell(r, id, id === m ? 'value' : id, id === m ? '' : 'wide'),
        });
      }
    } else {
      columns.push({ id: 'value', name: 'Bytes', number: true, of: (r) => r.bytes[m], cell: (r) => bytesCell(r, m, 'value') });
    }
    columns.push(
      { id: 'share', name: 'Share', of: (r) => r.bytes[m], cell: (r) => this.shareCell(r) },
      { id: 'growth', name: 'Growth', of: (r) => r.growth, cell: (r) => this.growthCell(r) },
      { id: 'blocks', name: 'Blocks', number: true, wide: true, of: (r) => r.blocks[m], cell: (r) => this.blocksCell(r) },
    );
    if (this.by === 'line') {
      columns.push(
        { id: 'name', name: 'Function', wide: true, of: (r) => r.frame.name, cell: (r) => el('td', { class: 'name wide', title: r.frame.name }, placeText(r.frame) === r.frame.name ? '' : r.frame.name) },
        { id: 'source', name: 'Source', wide: true, of: (r) => r.frame.source, cell: (r) => el('td', { class: 'source wide', title: r.frame.source }, r.frame.source) },
      );
    } else {
      columns.push({ id: 'source', name: this.by === 'function' ? 'Line' : '', wide: true, of: (r) => place(r.frame), cell: (r) => el('td', { class: 'source wide' }, this.by === 'function' ? place(r.frame) : '') });
    }
    return columns;
  }

  nameCell(r, text) {
    const shown = this.by === 'holder' ? narrowName(text) : text;
    const tail = shown.length > 2 * NAME_TAIL ? shown.slice(-NAME_TAIL) : ''; // what a name ends with tells it from others
    return el('td', { class: 'place', title: pathOf(r.frame) || text },
      el('div', { class: 'cutName' }, swatch(this.stack.colorOf(r.key)), el('span', { class: 'cut' }, shown.slice(0, shown.length - tail.length)), tail ? el('span', {}, tail) : ''));
  }

  // growthCell is the course of the row, and how fast it grows.
  growthCell(r) {
    const text = r.growth > 0 ? growthText(r.growth, this.model) : '';
    return el('td', { class: 'growth', 'data-growth': r.growth }, sparkline(r.course, this.stack.colorOf(r.key)), text ? el('span', { class: 'grows' }, text) : '');
  }

  blocksCell(r) {
    const n = r.blocks[this.state.measure];
    const text = r.unknown && this.state.measure === 'live' ? (n > 0 ? `${count(n)} + unknown` : 'unknown') : count(n);
    return el('td', { class: 'number blocks wide', 'data-blocks': n }, text);
  }

  shareCell(r) {
    const part = this.total > 0 ? r.bytes[this.state.measure] / this.total : 0;
    const fill = el('i', {});
    fill.style.width = `${Math.max(0, Math.min(100, 100 * part))}%`;
    return el('td', { class: 'share' }, el('span', { class: 'meter' }, fill), share(r.bytes[this.state.measure], this.total));
  }

  draw() {
    const columns = this.columns();
    const column = columns.find((c) => c.id === this.sort.column) || columns[0];
    const sign = this.sort.down ? -1 : 1;
    this.rows.sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      return sign * (x < y ? -1 : x > y ? 1 : 0) || b.bytes[this.state.measure] - a.bytes[this.state.measure] || (a.frame.name < b.frame.name ? -1 : 1);
    });
    this.head.replaceChildren(el('tr', {}, ...columns.map((c) => el('th', { class: `${c.number ? 'number' : ''} ${c.wide ? 'wide' : ''} ${c.id}`, scope: 'col', 'aria-sort': column === c ? (this.sort.down ? 'descending' : 'ascending') : null },
      el('button', { onclick: () => this.sortBy(c) }, c.name + (column === c ? (this.sort.down ? ' ↓' : ' ↑') : ''))))));
    const shown = this.all ? this.rows : this.rows.slice(0, FIRST_ROWS);
    this.body.replaceChildren(...shown.map((r) => {
      const tr = el('tr', { class: r.key === this.chosen ? 'on' : null, tabindex: 0, onclick: () => this.handlers.chosen(r) }, ...columns.map((c) => c.cell(r)));
      tr.dataset.name = r.frame.name;
      if (r.key === this.chosen) tr.setAttribute('aria-current', 'true');
      tr.addEventListener('keydown', (e) => {
        if (e.key === 'Enter') this.handlers.chosen(r);
      });
      return tr;
    }));
    this.more.hidden = shown.length === this.rows.length;
    this.more.textContent = `Show all ${count(this.rows.length)} rows`;
    this.counter.textContent = plural(this.rows.length, 'row');
  }

  sortBy(column) {
    const text = ['place', 'name', 'source'].includes(column.id);
    this.sort = { column: column.id, down: this.sort.column === column.id ? !this.sort.down : !text };
    this.draw();
  }
}

function bytesCell(row, measure, id, kind = '') {
  const n = row.bytes[measure];
  const text = sumText(n, row.unsized[measure]);
  return el('td', { class: `number bytes ${kind} ${n === 0 ? 'zero' : ''}`, title: row.unsized[measure] > 0 ? text : exactText(n), 'data-bytes': n, 'data-measure': id }, text);
}

// sumText is a sum of bytes, of which some blocks' are not known. It can be negative, by lost events.
function sumText(n, unsized) {
  if (unsized > 0 && n === 0) return 'unknown';
  const text = n < 0 ? `-${bytesText(-n)}` : bytesText(n);
  return unsized > 0 ? `${text} + unknown` : text;
}

function pathOf(frame) {
  return frame.file ? frame.file + (frame.line > 0 ? `:${frame.line}` : '') : frame.name;
}

// placeText is a Python line, or the native symbol.
function placeText(frame) {
  return frame.kind === OWN || frame.kind === LIBRARY ? place(frame) : frame.name;
}

// growthText is what growthOf gives as a person would say it.
function growthText(growth, model) {
  const [each, unit] = bySteps(model.steps) ? [growth, 'step'] : [growth * 1e9, 's'];
  return each >= 1 ? `+${bytesText(each < 1024 ? Math.round(each) : each)}/${unit}` : '';
}

// sparkline is a course as a small picture: the lowest filled, up to the highest lighter.
function sparkline(course, color) {
  const svg = $('spark').cloneNode(true);
  svg.removeAttribute('id');
  svg.removeAttribute('hidden');
  if (!course) return svg;
  const columns = Array.from({ length: 30 }, () => [Infinity, 0]);
  course.forEach((v, i) => {
    const c = columns[Math.min(29, Math.floor(30 * i / course.length))];
    c[0] = Math.min(c[0], v);
    c[1] = Math.max(c[1], v);
  });
  for (let i = 1; i < columns.length; i++) if (columns[i][0] === Infinity) columns[i] = columns[i - 1];
  const top = Math.max(1, ...columns.map((c) => c[1]));
  [1, 0].forEach((which, n) => {
    svg.children[n].setAttribute('d', `M0 16${columns.map((c, i) => `L${i * 60 / 29} ${16 - 15 * Math.max(0, c[which]) / top}`).join('')}L60 16Z`);
    svg.children[n].style.fill = `var(${color})`;
  });
  return svg;
}

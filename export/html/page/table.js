// SPDX-License-Identifier: Apache-2.0

// The table of what the flame graph shows, by line, function, file, thread and so on.

const GROUPINGS = {
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
  phase: { name: 'Phase', of: (m, g) => [m.groups.phase[g], plain(m.text[m.groups.phase[g]])] },
  category: { name: 'Category', of: (m, g) => [m.groups.for[g], plain(m.text[m.groups.for[g]])] },
  thread: { name: 'Thread', of: (m, g) => [m.groups.thread[g], plain(threadText(m, m.groups.thread[g]))] },
  size: { name: 'Block size', of: (m, g) => [m.groups.class[g], plain(classText(m.groups.class[g]))] },
  device: { name: 'Device', of: (m, g) => [m.groups.part[g], plain(m.partName(m.groups.part[g]))] },
  memory: { name: 'Memory', of: (m, g) => [m.groups.memory[g], plain(MEMORIES[m.groups.memory[g]])] },
};
const FIRST_ROWS = 100;

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
  show(model, sums, state, chosen) {
    Object.assign(this, { model, sums, state, chosen });
    const rows = new Map();
    const measures = state.from < 0 ? ['live'] : ['live', 'allocated', 'leaked'];
    for (let g = 0; g < model.count; g++) {
      if (!measures.some((m) => sums[m].blocks[g] > 0 || sums[m].bytes[g] !== 0)) continue;
      const [key, frame] = GROUPINGS[this.by].of(model, g);
      let row = rows.get(key);
      if (!row) rows.set(key, row = { key, frame, groups: [], bytes: { live: 0, allocated: 0, leaked: 0 }, blocks: { live: 0, allocated: 0, leaked: 0 }, unsized: { live: 0, allocated: 0, leaked: 0 } });
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
    this.draw();
  }

  columns() {
    const m = this.state.measure;
    const columns = [{ id: 'value', name: 'Bytes', number: true, of: (r) => r.bytes[m], cell: (r) => bytesCell(r, m, 'value') }];
    if (this.state.from >= 0) {
      const name = { live: 'Live at the end', allocated: 'Allocated', leaked: 'Leaked' };
      columns.length = 0;
      for (const id of ['live', 'allocated', 'leaked']) {
        columns.push({
          id: id === m ? 'value' : id, name: name[id], number: true, of: (r) => r.bytes[id],
          cell: (r) => bytesCell(r, id, id === m ? 'value' : id, id === 'leaked' && m === 'leaked' && r.bytes[id] > 0 ? 'leak' : ''),
        });
      }
    }
    columns.push(
      { id: 'share', name: 'Share', of: (r) => r.bytes[m], cell: (r) => this.shareCell(r) },
      { id: 'blocks', name: 'Blocks', number: true, of: (r) => r.blocks[m], cell: (r) => this.blocksCell(r) },
    );
    if (this.by === 'line') {
      columns.push(
        { id: 'place', name: 'Line', of: (r) => place(r.frame), cell: (r) => el('td', { class: 'place', title: pathOf(r.frame) }, placeText(r.frame)) },
        { id: 'name', name: 'Function', of: (r) => r.frame.name, cell: (r) => el('td', { class: 'name', title: r.frame.name }, placeText(r.frame) === r.frame.name ? '' : r.frame.name) },
        { id: 'source', name: 'Source', of: (r) => r.frame.source, cell: (r) => el('td', { class: 'source', title: r.frame.source }, r.frame.source) },
      );
    } else {
      columns.push({ id: 'name', name: GROUPINGS[this.by].name, of: (r) => r.frame.name, cell: (r) => el('td', { class: 'place', title: pathOf(r.frame) }, r.frame.name) });
      columns.push({ id: 'source', name: '', of: () => '', cell: (r) => el('td', { class: 'source' }, this.by === 'function' ? place(r.frame) : '') });
    }
    return columns;
  }

  blocksCell(r) {
    const n = r.blocks[this.state.measure];
    const text = r.unknown && this.state.measure === 'live' ? (n > 0 ? `${count(n)} + unknown` : 'unknown') : count(n);
    return el('td', { class: 'number blocks', 'data-blocks': n }, text);
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
    this.head.replaceChildren(el('tr', {}, ...columns.map((c) => el('th', { class: c.number ? 'number' : null, scope: 'col' },
      el('button', { onclick: () => this.sortBy(c) }, c.name + (column === c ? (this.sort.down ? ' ↓' : ' ↑') : ''))))));
    const shown = this.all ? this.rows : this.rows.slice(0, FIRST_ROWS);
    this.body.replaceChildren(...shown.map((r) => {
      const tr = el('tr', { class: r.key === this.chosen ? 'on' : null, tabindex: 0, onclick: () => this.handlers.chosen(r) }, ...columns.map((c) => c.cell(r)));
      tr.dataset.name = r.frame.name;
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
  return el('td', { class: `number bytes ${n === 0 ? 'zero' : kind}`, title: row.unsized[measure] > 0 ? text : exactText(n), 'data-bytes': n, 'data-measure': id }, text);
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

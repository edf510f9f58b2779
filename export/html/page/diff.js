// SPDX-License-Identifier: Apache-2.0

// The page of a difference: a table, sorted and searched.

const $ = (id) => document.getElementById(id);
const FIRST_ROWS = 200;

// signed is bytes that can be negative by themselves: those of lost events.
function signed(n) {
  return n < 0 ? signedBytes(n) : bytesText(n);
}

// grouped is a number with its sign: count takes -1 for unknown.
const grouped = (n) => (n > 0 ? '+' : '') + n.toLocaleString('en-US');
const changeText = (n) => (n === 0 ? '0 B' : signedBytes(n));
const countChange = (n) => (n === null ? 'unknown' : grouped(n));
const direction = (n) => (n > 0 ? 'grown' : n < 0 ? 'shrunk' : 'zero');

const COLUMNS = [
  { name: 'before', title: 'Before', value: (r) => (r.before ? r.before.bytes : -Infinity) },
  { name: 'after', title: 'After', value: (r) => (r.after ? r.after.bytes : -Infinity) },
  { name: 'change', title: 'Change', value: (r) => Math.abs(r.bytes) },
  { name: 'blocks', title: 'Blocks', value: (r) => Math.abs(r.blocks ?? 0) },
];

class Diff {
  constructor(data) {
    this.data = data;
    this.rows = data.rows.map((r, at) => ({ ...r, at, text: searchText(r) }));
    this.largest = Math.max(1, ...this.rows.slice(0, 1).map((r) => Math.abs(r.bytes)));
    this.sort = 'change';
    this.shown = FIRST_ROWS;
  }

  chosen() {
    const words = $('search').value.toLowerCase().split(/\s+/).filter(Boolean);
    const column = COLUMNS.find((c) => c.name === this.sort);
    const rows = this.rows.filter((r) => words.every((w) => r.text.includes(w)));
    return rows.sort((x, y) => column.value(y) - column.value(x) || x.at - y.at);
  }

  draw() {
    const rows = this.chosen();
    const body = [];
    for (const r of rows.slice(0, this.shown)) body.push(...this.row(r));
    $('table').tBodies[0].replaceChildren(...body);
    $('table').tHead.replaceChildren(this.heading());
    $('more').hidden = rows.length <= this.shown;
    const still = rows.filter((r) => r.bytes === 0 && !r.blocks).length;
    const sum = rows.reduce((n, r) => n + r.bytes, 0);
    $('rowCount').textContent = `${plural(rows.length, 'row')}, ${count(still)} without a change, ${changeText(sum)}`;
    $('rowCount').dataset.bytes = sum;
  }

  heading() {
    const head = el('tr', {}, el('th', {}, this.data.title), el('th', {}, 'Source'));
    for (const c of COLUMNS) {
      const sort = () => {
        this.sort = c.name;
        this.draw();
      };
      head.append(el('th', { class: 'number', 'aria-sort': this.sort === c.name && 'descending' }, el('button', { onclick: sort, 'data-sort': c.name }, c.title + (this.sort === c.name ? ' ▾' : ''))));
    }
    head.append(el('th', {}));
    return head;
  }

  row(r) {
    const e = r.after || r.before;
    const stack = e.stack || [];
    const place = el('td', { class: 'name', title: e.file || e.name }, e.name, e.function && e.function !== e.name ? ' ' + e.function : '', badge(r));
    const width = `${50 * Math.abs(r.bytes) / this.largest}%`;
    const bar = el('i', { class: direction(r.bytes) });
    bar.style.width = width;
    const out = [el('tr', { class: stack.length > 0 && 'over' }, place, el('td', { class: 'source', title: e.source }, e.source),
      el('td', { class: 'number' }, r.before ? signed(r.before.bytes) : '–'), el('td', { class: 'number' }, r.after ? signed(r.after.bytes) : '–'),
      el('td', { class: 'number change ' + direction(r.bytes), 'data-bytes': r.bytes, title: exactChange(r.bytes) }, changeText(r.bytes)),
      el('td', { class: 'number' }, countChange(r.blocks)), el('td', { class: 'scale' }, el('span', { class: 'both' }, bar)))];
    if (stack.length > 0) out.push(el('tr', {}, el('td', { class: 'stack', colspan: 7 }, stack.join(' ← '))));
    return out;
  }
}

const exactChange = (n) => grouped(n) + ' B';

function badge(r) {
  const text = !r.before ? 'new' : !r.after ? 'gone' : r.moved ? 'moved' : r.edited ? 'edited' : '';
  if (!text) return null;
  const from = r.before && r.after ? `before: ${r.before.name} ${r.before.source || ''}\n${r.before.file || ''}` : null;
  return el('span', { class: 'badge ' + text, title: from }, r.moved && r.before.name !== r.after.name ? `moved from ${r.before.name}` : text);
}

function searchText(r) {
  const parts = [];
  for (const e of [r.before, r.after]) if (e) parts.push(e.name, e.function, e.file, e.source, ...(e.stack || []));
  return parts.filter(Boolean).join('\n').toLowerCase();
}

function tile(name, value, more, kind = '') {
  return el('div', { class: 'tile ' + kind }, el('span', { class: 'name' }, name), el('span', { class: 'value', id: name.toLowerCase() }, value), el('span', { class: 'more' }, more));
}

async function startDiff() {
  const data = await inflateJSON('diff');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const theme = (name) => { document.documentElement.dataset.theme = name; };
  theme(dark.matches ? 'dark' : 'light');
  dark.addEventListener('change', () => theme(dark.matches ? 'dark' : 'light'));
  $('theme').addEventListener('click', () => theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
  $('sides').append(el('span', {}, el('b', {}, 'before'), data.before.what), el('span', {}, el('b', {}, 'after'), data.after.what));
  $('title').textContent = `In use by ${data.by}`;
  const side = (s) => `${s.bytes.toLocaleString('en-US')} B in ${plural(s.blocks, 'block')}`;
  $('tiles').append(tile('Before', signed(data.before.bytes), side(data.before)), tile('After', signed(data.after.bytes), side(data.after)),
    tile('Change', changeText(data.bytes), exactChange(data.bytes), direction(data.bytes)));
  $('footer').textContent = 'Rows of both sides are the same row when their line is: a line that moved is found by its function and text, where it is clear which is meant.';
  const diff = new Diff(data);
  $('search').addEventListener('input', () => diff.draw());
  $('more').addEventListener('click', () => {
    diff.shown *= 4;
    diff.draw();
  });
  diff.draw();
}

startDiff().then(() => { document.documentElement.dataset.ready = 'true'; }, (error) => {
  $('footer').textContent = `This page cannot be shown: ${error.message}`;
  document.documentElement.dataset.ready = 'failed';
});

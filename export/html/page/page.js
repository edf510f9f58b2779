// SPDX-License-Identifier: Apache-2.0

// The page: what is selected, and what is drawn anew for it.

const $ = (id) => document.getElementById(id);

const state = {
  at: 0, from: -1, to: -1, measure: 'live', memory: 'gpu', part: -1, thread: -1, class: -1, frames: 'python', query: '', only: null, row: null,
};
const MEASURES = {
  live: ['Live', 'at the end of the range'], allocated: ['Allocated', 'in the range, also if freed since'], leaked: ['Leaked', 'allocated in the range, live at its end'],
};

let model;
let curve;
let flame;
let table;

function kindText(kind) {
  if (kind & KIND_END) return 'at the end';
  if (kind & KIND_START) return 'before the first event';
  return '';
}

// refusalText says what was asked for, and by whom.
function refusalText(r) {
  const text = `out of memory: ${bytesText(r.bytes)} refused`;
  if (!model.frames) return text;
  const frame = model.frames[r.own];
  return `${text}, asked for by ${placeText(frame)}${placeText(frame) === frame.name ? '' : ` ${frame.name}`}`;
}

// momentText is a moment in words.
function momentText(i) {
  const { head } = model;
  const peaks = head.parts.flatMap((p, n) => (p.peakMoment === i && model.notable(n) ? [n] : []));
  const words = [seconds(model.moments[i] - head.start)];
  if (peaks.length > 0) words.push(`the peak of ${peaks.map((n) => model.partName(n)).join(', ')}`);
  const oom = head.ooms.find((r) => r.moment === i);
  if (oom) words.push(refusalText(oom));
  const kind = kindText(head.moments.kind[i]);
  if (kind) words.push(kind);
  return words.join(' · ');
}

function tile(name, value, more, options = {}) {
  const [number, unit] = Array.isArray(value) ? value : [value, ''];
  const e = el(options.onclick ? 'button' : 'div', { class: `tile ${options.bad ? 'bad' : ''}`, onclick: options.onclick || (() => {}) },
    el('div', { class: 'name' }, name), el('div', { class: 'value' }, number, unit ? el('small', {}, unit) : ''), el('div', { class: 'more' }, more));
  if (options.bytes !== undefined) e.dataset.bytes = options.bytes;
  e.dataset.name = options.id || name;
  return e;
}

// totalAt is the sum of a quantity over the parts at a moment: not known, where one is not.
function totalAt(list, i) {
  let sum = 0;
  for (const p of list) {
    if (p[i] === UNKNOWN) return UNKNOWN;
    sum += p[i];
  }
  return list.length > 0 ? sum : UNKNOWN;
}

function drawTiles() {
  const { head } = model;
  const torch = head.parts.filter((p) => p.torch);
  const end = model.moments.length - 1;
  const tiles = [];
  const notable = head.parts.filter((_, i) => model.notable(i)).length;
  head.parts.forEach((p, i) => {
    if (!model.notable(i) || tiles.length >= 8) return;
    const when = p.peakTime === UNKNOWN ? 'before the first event' : `at ${seconds(p.peakTime - head.start)}${p.peakMoment < 0 ? ', before this file begins' : ''}`;
    const name = notable > 1 ? `Peak · ${model.partName(i)}` : 'Peak';
    tiles.push(tile(name, bytesParts(p.peak), `${exactText(p.peak)} ${when}`, { bytes: p.peak, id: 'peak', onclick: p.peakMoment < 0 ? null : () => choose(p.peakMoment) }));
  });
  const live = totalAt(torch.map((p) => p.allocated), end);
  const before = totalAt(torch.map((p) => p.before), end);
  tiles.push(tile('Live at the end', bytesParts(live), torch.length > 0 ? `${exactText(live)}, of it ${bytesText(before)} from before the attach` : 'no caching allocator was seen',
    { bytes: live, id: 'live', onclick: () => choose(end) }));
  const reserved = totalAt(torch.map((p) => p.reserved), end);
  tiles.push(tile('Reserved at the end', bytesParts(reserved), exactText(reserved), { bytes: reserved, id: 'reserved' }));
  const oom = head.ooms.find((r) => r.moment >= 0);
  tiles.push(tile('Out of memory', count(head.refused), oom ? `first: ${bytesText(oom.bytes)} at ${seconds(oom.time - head.start)}` : 'no request was refused',
    { id: 'refused', bad: head.refused > 0, onclick: oom ? () => choose(oom.moment) : null }));
  tiles.push(lossTile());
  $('tiles').replaceChildren(...tiles);
}

function lossTile() {
  const l = model.head.losses;
  const stacks = l.stacks.reduce((n, s) => n + s.bytes, 0);
  const complete = l.stacks.filter((s) => s.status === 'complete').reduce((n, s) => n + s.bytes, 0);
  const more = [`${plural(l.gaps, 'gap')} of the totals, ${bytesText(l.gapBytes)}`];
  if (l.lossIntervals.length > 0) {
    const [first, last] = [l.lossIntervals[0], l.lossIntervals[l.lossIntervals.length - 1]];
    const start = model.head.start;
    more.push(`${l.lossIntervals.length === 1 ? 'between' : `in ${plural(l.lossIntervals.length, 'interval')} between`} ${seconds(first.from - start)} and ${seconds(last.to - start)}`);
  }
  if (stacks > 0) more.push(`stacks ${share(complete, stacks)} complete`);
  return tile('Events lost', count(l.events), more.join('; '), { id: 'lost', bad: l.events > 0 || l.gaps > 0 || l.lossIntervals.length > 0 });
}

function drawHead() {
  const { head } = model;
  $('program').textContent = head.program || 'unknown program';
  const facts = [...head.facts];
  if (head.started) facts.push(['started', head.started.replace('T', ' ').replace('Z', ' UTC')]);
  facts.push(['traced', duration(head.last - Math.min(0, head.start))], ['events', count(head.events)]);
  $('facts').replaceChildren(...facts.map(([name, value]) => el('span', {}, el('b', {}, name), value)));
  $('notes').replaceChildren(...head.notes.map((n) => el('p', {}, n)));
  $('notes').hidden = head.notes.length === 0;
}

function drawLegend() {
  const { head } = model;
  const items = SERIES.map((s, q) => {
    const known = model.curves.some((c) => c.last[q].some((v) => v > 0));
    if (!known) curve.hidden.add(q);
    return known ? el('button', {
      'aria-pressed': String(!curve.hidden.has(q)),
      onclick: (e) => {
        if (curve.hidden.has(q)) curve.hidden.delete(q);
        else curve.hidden.add(q);
        e.currentTarget.setAttribute('aria-pressed', String(!curve.hidden.has(q)));
        curve.draw();
      },
    }, el('i', { class: s.dot }), s.name) : null;
  }).filter(Boolean);
  if (curve.course) items.push(el('button', { 'aria-pressed': 'true', onclick: clearFilters, title: 'clear the filters' }, el('i', { class: 'c-match' }), 'chosen below'));
  $('legend').replaceChildren(...items);
  $('partField').hidden = head.parts.length < 2;
}

function fillSelect(id, entries, value, change) {
  const select = $(id);
  select.replaceChildren(...entries.map(([v, text]) => el('option', { value: v, selected: String(v) === String(value) }, text)));
  select.onchange = () => change(select.value);
  select.closest('.field').hidden = entries.length < 3 && id !== 'memory';
}

function fillSegments(id, entries, value, change) {
  $(id).replaceChildren(...entries.map(([v, text, title]) => el('button', { 'aria-pressed': String(v === value), title, 'data-value': v, onclick: () => change(v) }, ...[text].flat())));
}

function distinct(list) {
  return [...new Set(list)];
}

function drawFilters() {
  const g = model.groups;
  const set = (name, convert) => (v) => {
    state[name] = convert(v);
    state.only = state.row = null;
    update();
  };
  const memory = (v) => (v === 'gpu' ? v : Number(v));
  fillSelect('part', [[-1, 'all'], ...model.head.parts.map((_, i) => [i, model.partName(i)])], state.part, set('part', Number));
  fillSelect('memory', [['gpu', 'GPU memory in use'], ...distinct(g.memory).sort().map((m) => [m, MEMORIES[m]])], state.memory, set('memory', memory));
  fillSelect('thread', [[-1, 'all'], ...distinct(g.thread).sort((a, b) => a - b).map((t) => [t, threadText(model, t)])], state.thread, set('thread', Number));
  fillSelect('class', [[-1, 'all'], ...distinct(g.class).sort((a, b) => a - b).map((c) => [c, classText(c)])], state.class, set('class', Number));
}

function drawSegments() {
  fillSegments('frames', [['own', 'own', "the program's own lines"], ['python', 'Python', 'all Python frames'], ['all', 'all', 'native frames too']], state.frames, (v) => {
    state.frames = v;
    update();
  });
  const several = { device: model.head.parts.length > 1, thread: distinct(model.groups.thread).length > 1 };
  const by = Object.keys(GROUPINGS).filter((k) => several[k] ?? true).map((k) => [k, k]);
  fillSegments('by', by, table.by, (v) => {
    table.by = v;
    table.sort = { column: 'value', down: true };
    state.row = state.only = null;
    update();
  });
}

// filtered says whether something narrows down what is shown.
function filtered() {
  return Boolean(state.query || state.only || state.thread >= 0 || state.class >= 0 || state.memory !== 'gpu');
}

function clearFilters() {
  Object.assign(state, { query: '', only: null, row: null, thread: -1, class: -1, memory: 'gpu' });
  $('search').value = '';
  drawFilters();
  update();
}

function choose(at) {
  Object.assign(state, { at, from: -1, to: -1, measure: 'live' });
  update();
}

function chooseRange(from, to) {
  Object.assign(state, { at: to, from, to, measure: state.from < 0 ? 'allocated' : state.measure });
  update();
}

function drawChosen(sums) {
  const range = state.from >= 0;
  const total = (m, what) => sums[m][what].reduce((a, b) => a + b, 0);
  const [bytes, blocks] = [total(state.measure, 'bytes'), total(state.measure, 'blocks')];
  $('when').textContent = range
    ? `${momentText(state.from)} to ${momentText(state.to)} · ${duration(model.moments[state.to] - model.moments[state.from])}` : momentText(state.at);
  const unsized = (m) => sums[m].blocks.reduce((n, b, g) => n + (model.unsized(g) ? b : 0), 0);
  $('total').textContent = sumText(bytes, unsized(state.measure));
  $('total').dataset.bytes = bytes;
  $('total').dataset.blocks = blocks;
  $('total').dataset.to = model.head.moments.events[range ? state.to : state.at];
  $('total').dataset.from = range ? model.head.moments.events[state.from] : '';
  const what = { live: range ? 'live at the end of the range' : 'in use', allocated: 'allocated in the range', leaked: 'leaked in the range' }[state.measure];
  const more = state.measure === 'live' && sums.live.bytes.some((v, g) => model.unknownBlocks(g, v, sums.live.blocks[g])) ? ', and those from before the attach, whose number is unknown' : '';
  $('totalExact').textContent = `${what} · ${bytes === 0 && unsized(state.measure) > 0 ? 'unknown size' : exactText(bytes)} in ${plural(blocks, 'block')}${more}${filtered() ? ' · as filtered' : ''}`;
  drawMade();
  $('measures').hidden = !range;
  fillSegments('measures', Object.entries(MEASURES).map(([m, [name, title]]) => [m, [name, el('b', { 'data-measure': m, 'data-bytes': total(m, 'bytes') }, sumText(total(m, 'bytes'), unsized(m)))], title]),
    state.measure, (m) => {
      state.measure = m;
      update();
    });
}

// drawMade says what the allocators' own totals were.
function drawMade() {
  const { head } = model;
  const at = state.from < 0 ? state.at : state.to;
  const parts = head.parts.filter((_, i) => state.part < 0 || state.part === i);
  const torch = parts.filter((p) => p.torch);
  const texts = [];
  const sum = (name, list) => totalAt(list.map((p) => p[name]), at);
  if (torch.length > 0) {
    texts.push(`torch allocated ${bytesText(sum('allocated', torch))}`, `of it before the attach ${bytesText(sum('before', torch))}`, `reserved ${bytesText(sum('reserved', torch))}`);
    const lost = torch.reduce((n, p) => n + p.lost[at], 0);
    if (lost !== 0) texts.push(`lost events ${signedBytes(lost)}`);
  }
  texts.push(`device memory, as far as seen, ${bytesText(sum('driver', parts))}`);
  $('made').textContent = texts.join(' · ');
}

function drawJumps() {
  const { head } = model;
  const notable = head.parts.flatMap((_, i) => (model.notable(i) ? [i] : []));
  const jumps = notable.slice(0, 8).flatMap((i) => (head.parts[i].peakMoment >= 0 ? [[head.parts[i].peakMoment, notable.length > 1 ? `Peak ${model.partName(i)}` : 'Peak']] : []));
  const oom = head.ooms.find((r) => r.moment >= 0);
  if (oom) jumps.push([oom.moment, 'Out of memory']);
  jumps.push([model.moments.length - 1, 'End']);
  $('jumps').replaceChildren(...jumps.map(([at, name]) => el('button', { class: 'plain', onclick: () => choose(at) }, name)));
}

function drawChips() {
  const chips = [];
  if (flame.zoomNode !== 0) chips.push(el('button', { onclick: () => flame.zoom(0), title: 'show all of the flame graph' }, `zoom: ${flame.frame(flame.zoomNode).name} ✕`));
  if (state.only) {
    chips.push(el('button', { title: 'clear', onclick: () => {
      state.only = state.row = null;
      update();
    } }, `${state.row.label} ✕`));
  }
  $('chips').replaceChildren(...chips);
}

// update draws everything that depends on the choice.
function update() {
  curve.part = state.part;
  curve.selection = { at: state.at, from: state.from, to: state.to };
  $('zoomSelection').disabled = state.from < 0;
  if (!model.groups) {
    curve.draw();
    return;
  }
  const mask = model.mask(state);
  const sums = model.sums(state, mask);
  curve.course = filtered() ? model.course(mask) : null;
  drawLegend();
  curve.draw();
  drawChosen(sums);
  drawSegments();
  const view = model.view(state.frames);
  const weight = model.weigh(view, sums[state.measure]);
  const title = { live: 'in use', allocated: 'allocated', leaked: 'leaked' }[state.measure];
  flame.show(view, weight, title, state.query ? model.frameHits(state.query) : null);
  const empty = !(weight.bytes[0] > 0);
  $('flame').parentElement.hidden = empty;
  $('flameEmpty').hidden = !empty;
  $('flameEmpty').textContent = weight.blocks[0] > 0 ? 'The sizes are unknown.' : filtered() ? 'Nothing that the filters let through.' : { live: 'Nothing was in use.', allocated: 'Nothing was allocated.', leaked: 'Nothing leaked: all that was allocated in the range was freed in it.' }[state.measure];
  tableOf(mask, sums);
  drawChips();
}

// tableOf draws the table; a chosen row narrows down the flame graph, not the table.
function tableOf(mask, sums) {
  if (state.only) sums = model.sums(state, model.mask({ ...state, only: null }));
  table.show(model, sums, state, state.row && state.row.key);
  $('found').textContent = state.query ? plural(new Set(model.groups.own.filter((_, g) => mask[g])).size, 'place') : '';
}

function chooseRow(row) {
  if (state.row && state.row.key === row.key) {
    state.only = state.row = null;
  } else {
    const label = row.frame.file && row.frame.line ? `${place(row.frame)} ${row.frame.name}` : row.frame.name;
    state.row = { key: row.key, label };
    const of = GROUPINGS[table.by].of;
    state.only = new Set();
    for (let g = 0; g < model.count; g++) if (of(model, g)[0] === row.key) state.only.add(g);
  }
  update();
}

function escape() {
  if (document.activeElement === $('search') && state.query) {
    state.query = $('search').value = '';
    update();
  } else if (state.only) {
    state.only = state.row = null;
    update();
  } else if (flame.zoomNode !== 0) {
    flame.zoom(0);
  } else if (!curve.zoomedOut()) {
    curve.zoom(...curve.full);
  } else if (state.from >= 0) {
    choose(state.at);
  }
}

function step(by) {
  choose(Math.max(0, Math.min(model.moments.length - 1, (state.from < 0 ? state.at : state.to) + by)));
}

function keys(e) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const typing = e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement;
  if (e.key === 'Escape') escape();
  else if (typing) return;
  else if (e.key === '/') $('search').focus();
  else if (e.key === 'ArrowLeft') step(-1);
  else if (e.key === 'ArrowRight') step(1);
  else if (e.key === 'z' || e.key === 'Z') zoomToRange();
  else return;
  e.preventDefault();
}

function zoomToRange() {
  if (state.from < 0) return;
  const [from, to] = [model.moments[state.from], model.moments[state.to]];
  const margin = (to - from) * 0.04;
  curve.zoom(from - margin, to + margin);
}

function footer() {
  const { head } = model;
  const lines = [
    head.exact ? `All ${count(model.moments.length)} moments of the trace, one for each event, can be chosen.`
      : `${count(model.moments.length)} moments can be chosen: the highest and the lowest of each stretch of time, the peaks, refused requests, beginning and end. What is shown there is exact, to the byte; the curve has the highest and the lowest in between.`,
    'Leaked: allocated in the range, and still live at its end. Memory from before the attach has no stack, and counts as live only.',
  ];
  if (head.losses.cut > 0) lines.push(`${plural(head.losses.cut, 'stack')} of those that allocated least ${head.losses.cut === 1 ? 'is' : 'are'} shown as one line alone, to keep the page small.`);
  $('footer').replaceChildren(...lines.map((l) => el('p', {}, l)));
}

function firstChoice() {
  const { head } = model;
  const s = head.select;
  const main = head.parts.reduce((best, p, i) => (p.peakMoment >= 0 && (best < 0 || p.peak > head.parts[best].peak) ? i : best), -1);
  const torch = head.parts.filter((p) => p.torch);
  const highest = () => model.moments.map((_, i) => totalAt(torch.map((p) => p.allocated), i)).reduce((best, v, i, all) => (v > all[best] ? i : best), model.moments.length - 1);
  state.at = main < 0 ? highest() : head.parts[main].peakMoment;
  if (s.to >= 0) {
    if (s.from < s.to) Object.assign(state, { at: s.to, from: s.from, to: s.to, measure: 'allocated' });
  } else if (s.at >= 0) {
    state.at = s.at;
  }
}

function listen() {
  $('search').addEventListener('input', () => {
    state.query = $('search').value.trim();
    update();
  });
  $('zoomOut').addEventListener('click', () => curve.zoom(...curve.full));
  $('zoomSelection').addEventListener('click', zoomToRange);
  document.addEventListener('keydown', keys);
  const redraw = () => {
    curve.draw();
    flame.draw();
  };
  $('theme').addEventListener('click', () => {
    setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
    redraw();
  });
  const dark = matchMedia('(prefers-color-scheme: dark)');
  dark.addEventListener('change', () => {
    setTheme(dark.matches ? 'dark' : 'light');
    redraw();
  });
  window.addEventListener('resize', redraw);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

async function start() {
  setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  const head = await inflateJSON('head');
  setTimeDigits(head.last);
  model = new Model(head, decodeCurves(await inflate('curves'), head.points));
  curve = new CurveView($('curve'), $('curveTip'), model, { at: choose, range: chooseRange, zoomed: () => { $('zoomOut').disabled = curve.zoomedOut(); } });
  flame = new FlameView($('flame'), $('flameTip'), model, { zoomed: drawChips });
  table = new TableView({ table: $('table'), more: $('more'), counter: $('rowCount') }, { chosen: chooseRow });
  drawHead();
  drawTiles();
  drawJumps();
  drawLegend();
  footer();
  firstChoice();
  update();
  performance.mark('curve');
  const tree = await inflateJSON('tree');
  model.setTree(tree, decodeLifetimes(await inflate('lifetimes'), tree.lifetimes));
  drawFilters();
  listen();
  update();
  performance.mark('ready');
  document.documentElement.dataset.ready = 'true';
}

start().catch((e) => {
  $('notes').replaceChildren(el('p', {}, `This page could not be drawn: ${e.message}`));
  $('notes').hidden = false;
  document.documentElement.dataset.ready = 'failed';
});

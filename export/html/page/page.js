// SPDX-License-Identifier: Apache-2.0

// The page: what is selected, and what is drawn anew for it.

const $ = (id) => document.getElementById(id);

const state = {
  at: 0, from: -1, to: -1, measure: 'live', memory: 'gpu', part: -1, thread: -1, class: -1, frames: 'python', inverted: false, query: '', only: null, row: null,
};
const MEASURES = {
  kept: ['Kept', 'allocated in the range, in use at its end'], allocated: ['Allocated', 'in the range, also if freed since'], live: ['In use', 'at the end of the range'],
};

let model;
let curve;
let flame;
let table;
let segments;
let stack;

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

// tile is a card for what is wrong.
function tile(id, name, value, more, onclick) {
  const e = el(onclick ? 'button' : 'div', { class: 'tile bad', onclick }, el('div', { class: 'name' }, name), el('div', { class: 'value' }, value), el('div', { class: 'more' }, more));
  e.dataset.name = id;
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

// figure is one of the line of figures.
function figure(id, name, bytes, more, onclick) {
  const e = el(onclick ? 'button' : 'span', { class: 'figure', onclick, title: exactText(bytes) }, `${name} `, el('b', {}, bytesText(bytes)), more ? ` ${more}` : '');
  Object.assign(e.dataset, { bytes, name: id });
  return e;
}

// ofCapacity says how much of a device something is.
function ofCapacity(bytes, capacity) {
  return capacity > 0 && bytes >= 0 ? `of ${bytesText(capacity)}, ${share(bytes, capacity)}` : '';
}

// drawFigures draws the line of figures: peak of each device, the end, and what of the device that is.
function drawFigures() {
  const { head } = model;
  const torch = head.parts.filter((p) => p.torch);
  const end = model.moments.length - 1;
  const notable = head.parts.flatMap((p, i) => (model.notable(i) ? [[p, i]] : []));
  const out = notable.slice(0, 8).map(([p, i]) => {
    const when = p.peakTime === UNKNOWN ? 'before the first event' : `at ${seconds(p.peakTime - head.start, 1)}${p.peakMoment < 0 ? ', before this file begins' : ''}`;
    return figure('peak', `${notable.length > 1 ? `${model.partName(i)} ` : ''}${p.torch ? 'PyTorch peak' : 'peak'}`, p.peak, [ofCapacity(p.peak, p.capacity), when].filter(Boolean).join(' '), p.peakMoment < 0 ? null : () => choose(p.peakMoment));
  });
  const { exit } = head;
  const before = totalAt(torch.map((p) => p.before), end);
  const whence = before > 0 ? `(${bytesText(before)} from before the attach)` : '';
  if (exit) out.push(figure('exit', 'before its end', exit.bytes, '', exit.moment >= 0 ? () => choose(exit.moment) : null));
  else out.push(figure('live', 'at the end', totalAt(torch.map((p) => p.allocated), end), torch.length > 0 ? whence : 'no caching allocator was seen', () => choose(end)));
  out.push(figure('reserved', 'reserved', totalAt(torch.map((p) => p.reserved), end), ''));
  for (const [p, i] of notable.slice(0, 8)) {
    if (!(p.used > 0) || p.used < p.reserved[end]) continue; // it was read at another time
    const others = p.others > 0 ? `, ${bytesText(p.others)} by other processes` : '';
    out.push(figure('device', notable.length > 1 ? `all of ${model.partName(i)}` : 'with context', p.used, ofCapacity(p.used, p.capacity) + others));
  }
  $('figures').replaceChildren(...out);
}

// drawVerdict draws the answer and its findings.
function drawVerdict() {
  const v = model.head.verdict;
  $('verdict').hidden = !v;
  if (!v) return;
  $('verdict').className = `verdict ${v.kind}`;
  $('verdict').replaceChildren(
    el('p', { class: 'sentence' }, el('strong', {}, v.word), ` ${v.text}`),
    ...v.findings.map((f) => el('div', { class: 'finding' },
      f.search ? el('button', { class: 'findingName', title: `show ${f.search} alone`, onclick: () => search(f.search) }, f.title) : el('span', { class: 'findingName' }, f.title),
      el('ul', {}, ...f.lines.map((l) => el('li', {}, l))))),
  );
}

function search(text) {
  state.query = $('search').value = text;
  update();
}

// drawTiles draws cards for what is wrong, and nothing else.
function drawTiles() {
  const { head } = model;
  const tiles = [];
  const oom = head.ooms.find((r) => r.moment >= 0);
  if (head.refused > 0 && !(head.verdict && head.verdict.kind === 'bad')) {
    tiles.push(tile('refused', 'Out of memory', plural(head.refused, 'request') + ' refused', oom ? `first: ${refusalText(oom)}, ${seconds(oom.time - head.start)}` : '', oom ? () => choose(oom.moment) : null));
  }
  const l = head.losses;
  if (l.events > 0 || l.gaps > 0 || l.lossIntervals.length > 0) tiles.push(tile('lost', 'Events lost', count(l.events), lossText()));
  $('tiles').hidden = tiles.length === 0;
  $('tiles').replaceChildren(...tiles);
}

// lossText says what is missing.
function lossText() {
  const l = model.head.losses;
  const more = [];
  if (l.gaps > 0) more.push(`${plural(l.gaps, 'jump')} of the allocator's total, ${bytesText(l.gapBytes)} in all`);
  if (l.lossIntervals.length > 0) {
    const [first, last] = [l.lossIntervals[0], l.lossIntervals[l.lossIntervals.length - 1]];
    const start = model.head.start;
    more.push(`${l.lossIntervals.length === 1 ? 'between' : `in ${plural(l.lossIntervals.length, 'interval')} between`} ${seconds(first.from - start)} and ${seconds(last.to - start)}`);
  }
  return more.join('; ');
}

// auditText says that nothing is missing, and how whole the stacks are.
function auditText() {
  const l = model.head.losses;
  const stacks = l.stacks.reduce((n, s) => n + s.bytes, 0);
  const complete = l.stacks.filter((s) => s.status === 'complete').reduce((n, s) => n + s.bytes, 0);
  return [`${count(l.events)} lost`, stacks > 0 ? `stacks ${share(complete, stacks)} complete` : ''].filter(Boolean).join(', ');
}

function drawHead() {
  const { head } = model;
  $('program').textContent = head.script || head.program || 'unknown program';
  $('command').textContent = head.script && head.program !== head.script ? head.program : '';
  const facts = [...head.facts];
  if (head.started) facts.push(['started', head.started.replace('T', ' ').replace('Z', ' UTC')]);
  facts.push(['traced', duration(head.last - Math.min(0, head.start))], ['events', `${count(head.events)}, ${auditText()}`]);
  if (model.steps.length > 0) facts.push(['steps', `${count(model.steps.length)}, by ${head.steps.on}`]);
  $('facts').replaceChildren(...facts.map(([name, value]) => el('span', {}, el('b', {}, name), value)));
  $('notes').replaceChildren(...head.notes.map((n) => el('p', {}, n)));
  $('notes').hidden = head.notes.length === 0;
}

// layerName is a name for the legend, which has little room.
function layerName(name) {
  const room = window.innerWidth > 720 ? 38 : 24; // characters
  return name.includes(' local ') || /[[.]/.test(name) && !/[ :]/.test(name) ? fitHolder(name, room) : name;
}

function drawLegend() {
  const { head } = model;
  const items = [];
  if (stack) {
    for (const layer of stack.layers) {
      const shown = [swatch(layer.color), el('span', { class: 'cut' }, layerName(layer.name))];
      items.push(layer.key === undefined ? el('span', {}, ...shown)
        : el('button', { title: `show ${layer.name} alone`, onclick: () => chooseKey(layer.key, layer.name) }, ...shown));
    }
  }
  SERIES.forEach((s, q) => {
    if (q < 2 || !model.curves.some((c) => c.last[q].some((v) => v > 0))) {
      curve.hidden.add(q);
      return;
    }
    items.push(el('button', {
      'aria-pressed': String(!curve.hidden.has(q)),
      onclick: (e) => {
        if (curve.hidden.has(q)) curve.hidden.delete(q);
        else curve.hidden.add(q);
        e.currentTarget.setAttribute('aria-pressed', String(!curve.hidden.has(q)));
        curve.draw();
      },
    }, el('i', { class: s.dot }), s.name));
  });
  $('legend').replaceChildren(...items);
  $('phaseLegend').replaceChildren(...(curve.phasesShown ? PHASES.map((p, i) => el('span', {}, swatch(`--p${i + 1}`), p)) : []));
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
  fillSegments('frames', [['own', 'own lines', "the program's own lines"], ['python', 'Python', 'Python, without frames that are in every stack'], ['all', 'all frames', 'native frames, and those that are in every stack']], state.frames, (v) => {
    state.frames = v;
    update();
  });
  $('inverted').setAttribute('aria-pressed', String(state.inverted));
  const several = { device: model.head.parts.length > 1, thread: distinct(model.groups.thread).length > 1 };
  const by = Object.keys(GROUPINGS).filter((k) => several[k] ?? true).map((k) => [k, GROUPINGS[k].name]);
  fillSegments('by', by, table.by, (v) => {
    table.by = v;
    table.sort = { column: 'value', down: true };
    stack = null;
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
  Object.assign(state, { at: to, from, to, measure: state.from < 0 ? 'kept' : state.measure });
  table.sort = { column: 'value', down: true };
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
  const what = { live: range ? 'live at the end of the range' : 'in use', allocated: 'allocated in the range', kept: 'allocated in the range and kept' }[state.measure];
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
    const [allocated, before] = [sum('allocated', torch), sum('before', torch)];
    texts.push(`PyTorch allocated ${bytesText(allocated)}${before > 0 ? `, ${bytesText(before)} of it before the attach` : ''}`);
    const total = state.part < 0 ? model.totals[at] : NaN;
    if (allocated !== UNKNOWN && total > allocated) texts.push(`outside of its allocator ${bytesText(total - allocated)}`);
    texts.push(`reserved ${bytesText(sum('reserved', torch))}`);
    const lost = torch.reduce((n, p) => n + p.lost[at], 0);
    if (lost !== 0) texts.push(`lost events ${signedBytes(lost)}`);
  }
  texts.push(`from the driver ${bytesText(sum('driver', parts))}`);
  $('made').textContent = texts.join(' · ');
}

function drawJumps() {
  const { head } = model;
  const notable = head.parts.flatMap((_, i) => (model.notable(i) ? [i] : []));
  const jumps = notable.slice(0, 8).flatMap((i) => (head.parts[i].peakMoment >= 0 ? [[head.parts[i].peakMoment, notable.length > 1 ? `Peak ${model.partName(i)}` : 'Peak']] : []));
  const oom = head.ooms.find((r) => r.moment >= 0);
  if (oom) jumps.push([oom.moment, 'Out of memory']);
  if (head.exit && head.exit.moment >= 0) jumps.push([head.exit.moment, 'Before its end']);
  jumps.push([model.moments.length - 1, 'End']);
  $('jumps').replaceChildren(...jumps.map(([at, name]) => el('button', { class: 'plain', onclick: () => choose(at) }, name)));
}

function drawChips() {
  const chips = [];
  if (state.only) chips.push(el('button', { title: 'clear', 'aria-label': `clear ${state.row.label}`, onclick: clearRow }, `${state.row.label} ✕`));
  $('chips').replaceChildren(...chips);
}

function clearRow() {
  state.only = state.row = null;
  flame.zoomNode = 0;
  update();
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
  if (!stack) stack = new Stack(model, table.by, mask);
  else stack.filter(model, mask);
  stack.filtered = filtered();
  curve.stack = stack;
  curve.draw();
  drawLegend();
  drawChosen(sums);
  drawSegments();
  const split = GROUPINGS[table.by].split ? table.by : '';
  const view = model.view(state.frames, split, state.inverted);
  const weight = model.weigh(view, sums[state.measure]);
  const title = { live: 'in use', allocated: 'allocated', kept: 'kept' }[state.measure];
  flame.show(view, weight, title, state.query ? model.frameHits(state.query) : null, frameColor);
  const empty = !(weight.bytes[0] > 0);
  $('flame').parentElement.hidden = empty;
  $('flameEmpty').hidden = !empty;
  if (empty) $('flameEmpty').replaceChildren(...emptyText(weight));
  table.show(model, sums, state, state.row && state.row.key, stack, mask);
  $('found').textContent = state.query ? plural(new Set(model.groups.own.filter((_, g) => mask[g])).size, 'place') : '';
  drawChips();
  showSegments(mask);
}

// frameColor is the colour that a frame has as a row of the table, if it is one; else null.
function frameColor(view, node) {
  const name = view.label[node];
  const layer = stack.layers.find((l) => (name !== null ? l.rows.some((r) => r.name === name) : l.key !== undefined && table.by === 'line' && l.key === view.frame[node]));
  return layer && layer.color.startsWith('--s') ? layer.color : null;
}

// emptyText says why there is nothing to draw.
function emptyText(weight) {
  const clear = el('button', { class: 'plain', onclick: clearFilters }, 'Clear');
  if (weight.blocks[0] > 0) return ['The sizes are unknown.'];
  if (state.query) return [`No match for ${state.query}. `, clear];
  if (filtered()) return ['Nothing is left by the filters. ', clear];
  return [{ live: 'Nothing was in use.', allocated: 'Nothing was allocated.', kept: 'Nothing was kept: all that was allocated in the range was freed in it.' }[state.measure]];
}

// showSegments draws the map of segments once somebody looks at it.
async function showSegments(mask) {
  if (!$('segmentsCard').open || model.places.segments + model.places.blocks === 0) return;
  if (!segments) {
    segments = new SegmentsView({ canvas: $('segments'), tip: $('segmentsTip'), text: $('segmentsText'), more: $('segmentsMore') }, model, { chosen: (g) => chooseKey(GROUPINGS[table.by].of(model, g)[0], GROUPINGS[table.by].of(model, g)[1].name) });
    segments.data = decodePlaces(await inflate('places'), model.places);
    update();
    return;
  }
  if (segments.data) segments.show(state.from < 0 ? state.at : state.to, state, mask, stack);
}

function chooseRow(row) {
  chooseKey(row.key, row.frame.file && row.frame.line ? `${place(row.frame)} ${row.frame.name}` : row.frame.name);
}

// chooseKey leaves one row of the table, or all again.
function chooseKey(key, label) {
  if (state.row && state.row.key === key && state.row.by === table.by) {
    clearRow();
    return;
  }
  const { of } = GROUPINGS[table.by];
  state.row = { key, label, by: table.by };
  state.only = new Set();
  for (let g = 0; g < model.count; g++) if (of(model, g)[0] === key) state.only.add(g);
  flame.zoomNode = 0;
  update();
}

// chooseFrame leaves what goes through a frame of the flame graph.
function chooseFrame(node) {
  if (node === 0) {
    clearRow();
    return;
  }
  state.row = { key: null, label: flame.label(node), by: 'frame' };
  state.only = model.below(flame.view, node);
  update();
}

function escape() {
  if (document.activeElement === $('search') && state.query) {
    state.query = $('search').value = '';
    update();
  } else if (state.only) {
    clearRow();
  } else if (!curve.zoomedOut()) {
    curve.zoom(...curve.full);
  } else if (state.from >= 0) {
    choose(state.at);
  }
}

function step(by) {
  choose(Math.max(0, Math.min(model.moments.length - 1, (state.from < 0 ? state.at : state.to) + by)));
}

// stretch makes a range of the moment, or moves the end of it.
function stretch(by) {
  const from = state.from < 0 ? state.at : state.from;
  const to = Math.max(from + 1, Math.min(model.moments.length - 1, (state.from < 0 ? state.at : state.to) + by));
  if (to < model.moments.length) chooseRange(from, to);
}

function keys(e) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const typing = e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement;
  if (e.key === 'Escape') escape();
  else if (typing) return;
  else if (e.key === '/') $('search').focus();
  else if (e.key === 'ArrowLeft') (e.shiftKey ? stretch : step)(-1);
  else if (e.key === 'ArrowRight') (e.shiftKey ? stretch : step)(1);
  else if (e.target === $('curve') && (e.key === 'Home' || e.key === 'End')) choose(e.key === 'Home' ? 0 : model.moments.length - 1);
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
    'Kept: allocated in the range, and in use at its end; that can be a leak, a cache, or the state of an optimizer. Memory from before the attach has no stack.',
    'Colours: the eight rows of the table that are largest or grow most. Full colour is what is there at the lowest of each stretch of time, light what comes and goes above it. Holders are known at the end of the recording.',
  ];
  if (head.losses.cut > 0) lines.push(`${plural(head.losses.cut, 'stack')} of those that allocated least ${head.losses.cut === 1 ? 'is' : 'are'} shown as one line alone, to keep the page small.`);
  $('footer').replaceChildren(...lines.map((l) => el('p', {}, l)));
}

function firstChoice() {
  const { head } = model;
  const s = head.select;
  const main = head.parts.reduce((best, p, i) => (p.peakMoment >= 0 && model.notable(i) && (best < 0 || p.peak > head.parts[best].peak) ? i : best), -1);
  const torch = head.parts.filter((p) => p.torch);
  const highest = () => model.moments.map((_, i) => totalAt(torch.map((p) => p.allocated), i)).reduce((best, v, i, all) => (v > all[best] ? i : best), model.moments.length - 1);
  state.at = main < 0 ? highest() : head.parts[main].peakMoment;
  if (s.to >= 0) {
    if (s.from < s.to) Object.assign(state, { at: s.to, from: s.from, to: s.to, measure: 'kept' });
  } else if (s.at >= 0) {
    state.at = s.at;
  }
}

// firstTab is holders where they are known of most, else categories where one line has nearly all, else lines.
function firstTab() {
  const sums = model.sums(state, model.mask(state)).live.bytes;
  const all = sums.reduce((a, b) => a + b, 0);
  const lines = new Map();
  let held = 0;
  for (let g = 0; g < model.count; g++) {
    if (!isSpecial(model.text[model.groups.holder[g]])) held += sums[g];
    if (model.frames[model.groups.own[g]].kind === OWN) lines.set(model.groups.own[g], (lines.get(model.groups.own[g]) || 0) + sums[g]);
  }
  table.by = held > all / 2 ? 'holder' : Math.max(0, ...lines.values()) > all / 2 && distinct(model.groups.for).length > 2 ? 'category' : 'line';
}

function listen() {
  $('search').addEventListener('input', () => {
    state.query = $('search').value.trim();
    update();
  });
  $('zoomOut').addEventListener('click', () => curve.zoom(...curve.full));
  $('zoomSelection').addEventListener('click', zoomToRange);
  document.addEventListener('keydown', keys);
  $('inverted').addEventListener('click', () => {
    state.inverted = !state.inverted;
    update();
  });
  $('segmentsCard').addEventListener('toggle', () => update());
  const redraw = () => {
    curve.draw();
    flame.draw();
    if (segments && segments.data && segments.stack) segments.draw();
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
  flame = new FlameView($('flame'), $('flameTip'), model, { chosen: chooseFrame });
  table = new TableView({ table: $('table'), more: $('more'), counter: $('rowCount') }, { chosen: chooseRow });
  drawHead();
  drawVerdict();
  drawFigures();
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
  drawTiles();
  firstTab();
  listen();
  $('segmentsCard').hidden = model.places.segments + model.places.blocks === 0;
  $('segmentsCard').open = head.ooms.some((r) => r.moment === state.at);
  update();
  performance.mark('ready');
  document.documentElement.dataset.ready = 'true';
}

start().catch((e) => {
  $('notes').replaceChildren(el('p', {}, `This page could not be drawn: ${e.message}`));
  $('notes').hidden = false;
  document.documentElement.dataset.ready = 'failed';
});

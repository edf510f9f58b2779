// SPDX-License-Identifier: Apache-2.0

// Figures as gputrace report prints them: binary units, and unknown where something is not known.

const UNITS = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

function unknown(n) {
  return n === UNKNOWN || Number.isNaN(n);
}

function bytesParts(n) {
  if (unknown(n)) return ['unknown', ''];
  const sign = n < 0 ? '-' : '';
  let v = Math.abs(n);
  if (v < 1024) return [sign + v, 'B'];
  let unit = 0;
  for (v /= 1024; v >= 999.95; unit++) v /= 1024;
  return [sign + tenths(v), UNITS[unit]];
}

// tenths rounds half to even, as gputrace's texts do.
function tenths(v) {
  return (evenly(v * 10) / 10).toFixed(1);
}

function bytesText(n) {
  return bytesParts(n).join(' ').trim();
}

function count(n) {
  return unknown(n) ? 'unknown' : n.toLocaleString('en-US');
}

function exactText(n) {
  return unknown(n) ? 'unknown' : count(n) + ' B';
}

function plural(n, one) {
  return `${count(n)} ${one}${n === 1 ? '' : 's'}`;
}

// share is a part of a whole: what is not nothing is not 0 %, and what is not all is not 100 %.
function share(part, whole) {
  if (!(whole > 0)) return '';
  const percent = 100 * part / whole;
  if (part > 0 && percent < 1) return '<1 %';
  if (part < 0 && percent > -1) return '>-1 %';
  if (part > 0 && percent >= 99.5 && percent < 100) return '>99 %';
  return `${evenly(percent)} %`;
}

// evenly rounds half to even, as gputrace's texts do.
function evenly(v) {
  const n = Math.round(v);
  return Math.abs(v % 1) === 0.5 && n % 2 !== 0 ? n - 1 : n;
}

// signedBytes is the difference of two: never -1 for unknown.
function signedBytes(n) {
  return (n < 0 ? '-' : '+') + bytesText(Math.abs(n));
}

// timeDigits are the digits behind the point that tell the moments of a trace apart.
let timeDigits = 3;

function setTimeDigits(length) {
  timeDigits = Math.min(9, Math.max(3, Math.ceil(3 - Math.log10(Math.max(1, length) / 1e9))));
}

// seconds is a time, nanoseconds, as a place on the axis, with so many digits behind the point.
function seconds(ns, digits = timeDigits) {
  const s = ns / 1e9;
  return `${s < 0 ? '-' : '+'}${Math.abs(s).toFixed(digits)} s`;
}

function duration(ns) {
  const s = ns / 1e9;
  if (s >= 3600) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  if (s >= 120) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s >= 1) return s.toFixed(s < 10 ? 2 : 1) + ' s';
  return s >= 0.001 ? (1e3 * s).toFixed(1) + ' ms' : (1e6 * s).toFixed(1) + ' µs';
}

// el makes an element. Texts become text, never markup: names come from the program that was traced.
function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on') && value) e.addEventListener(name.slice(2), value);
    else if (name.startsWith('on')) continue;
    else if (value === true) e.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== ''));
  return e;
}

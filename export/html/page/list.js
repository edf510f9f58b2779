// SPDX-License-Identifier: Apache-2.0

// How long to wait before the list is asked for again, ms.
const soon = 1000, later = 5000;

function startTheme() {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const theme = (name) => { document.documentElement.dataset.theme = name; };
  theme(dark.matches ? 'dark' : 'light');
  dark.addEventListener('change', () => theme(dark.matches ? 'dark' : 'light'));
  document.getElementById('theme').addEventListener('click', () => theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
}

// replaceList shows another list, if it differs. The focus stays on the same link.
function replaceList(fresh) {
  const list = document.getElementById('list');
  if (!fresh || fresh.outerHTML === list.outerHTML) return;
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
  list.replaceWith(fresh);
  if (focused) [...fresh.querySelectorAll('a')].find((a) => a.getAttribute('href') === focused)?.focus({ preventScroll: true });
}

async function refresh() {
  if (!document.hidden) {
    let answered = false;
    try {
      const answer = await fetch(location.href);
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
        document.title = page.title;
        document.querySelector('h1').textContent = page.querySelector('h1').textContent;
        replaceList(page.getElementById('list'));
        answered = true;
      }
    } catch {
      // the server has ended, or the network has
    }
    document.getElementById('offline').hidden = answered;
  }
  setTimeout(refresh, document.getElementById('list').dataset.pending ? soon : later);
}

startTheme();
setTimeout(refresh, soon);

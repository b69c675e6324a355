// Sorting, filtering, enlarging. All data is in the page's elements already;
// texts are only ever set as texts.
'use strict';

document.documentElement.classList.add('scripted');

const collator = new Intl.Collator('en', {numeric: true});

// ---------------------------------------------------------------- sorting
const keyOf = (cell) => cell.dataset.sort ?? cell.textContent.trim();

const compare = (a, b) => {
  if (a === '' || b === '') return a === b ? 0 : a === '' ? 1 : -1;
  return collator.compare(a, b);
};

function sortBy(table, column) {
  const headers = [...table.tHead.rows[0].cells];
  const header = headers[column];
  const first = header.classList.contains('number') ||
    header.classList.contains('amount') ? 'descending' : 'ascending';
  const other = first === 'ascending' ? 'descending' : 'ascending';
  const way = header.getAttribute('aria-sort') === first ? other : first;
  for (const header of headers) header.removeAttribute('aria-sort');
  header.setAttribute('aria-sort', way);
  const sign = way === 'ascending' ? 1 : -1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
  // What is empty stays last, whichever way; equal rows keep their order.
  rows.sort(([a], [b]) => (a === '' || b === '' ? 1 : sign) * compare(a, b));
  const sorted = document.createDocumentFragment();
  for (const [, row] of rows) sorted.append(row);
  body.append(sorted);
}

for (const table of document.querySelectorAll('table.sortable')) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'sort';
    button.append(...header.childNodes);
    button.addEventListener('click', () => sortBy(table, column));
    header.append(button);
  });
}

// -------------------------------------------------------------- filtering
// Lists in attributes are divided by newlines, which no name has.
const listed = (row, name) => (row.dataset[name] ?? '').split('\n');

function makeFilter(form) {
  const target = document.getElementById(form.dataset.for);
  const rows = [...target.querySelectorAll('.row')];
  const empty = target.parentElement.querySelector('.empty');
  const count = form.querySelector('.count');
  const texts = new Map();
  const textOf = (row) => {
    if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
    return texts.get(row);
  };
  const apply = () => {
    const data = new FormData(form);
    const severities = form.elements.severity ? data.getAll('severity') : null;
    const words = (data.get('text') ?? '').toLowerCase()
      .split(/\s+/).filter(Boolean);
    const group = form.dataset.group ?? '';
    let shown = 0;
    for (const row of rows) {
      const fits =
        (!severities || severities.includes(row.dataset.severity)) &&
        (!group || row.dataset.group === group) &&
        ['rule', 'split', 'class'].every((name) => {
          const value = data.get(name);
          return !value || listed(row, name).includes(value);
        }) &&
        words.every((word) => textOf(row).includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    if (empty) empty.hidden = shown > 0;
    count.textContent = shown === rows.length ?
      `${rows.length} shown` : `${shown} of ${rows.length} shown`;
  };
  let waiting = 0;
  const changed = (event) => {
    delete form.dataset.group;
    clearTimeout(waiting);
    waiting = setTimeout(apply, event.target.type === 'search' ? 120 : 0);
  };
  // What drives a browser for its user may send either.
  form.addEventListener('input', changed);
  form.addEventListener('change', changed);
  form.addEventListener('reset', () => {
    delete form.dataset.group;
    setTimeout(apply);
  });
  form.addEventListener('submit', (event) => event.preventDefault());
  apply();
  return apply;
}

const filters = new Map();
for (const form of document.querySelectorAll('form.filters')) {
  filters.set(form.dataset.for, [form, makeFilter(form)]);
}

for (const link of document.querySelectorAll('a.to-pictures')) {
  link.addEventListener('click', () => {
    const [form, apply] = filters.get('gallery');
    form.reset();
    form.elements.rule.value = link.dataset.rule;
    // After the reset, which forgets the group.
    setTimeout(() => {
      form.dataset.group = link.dataset.group;
      apply();
    });
  });
}

// -------------------------------------------------------------- enlarging
const dialog = document.getElementById('enlarged');
if (dialog) {
  const image = dialog.querySelector('img');
  const caption = dialog.querySelector('.caption');
  const buttons = [...document.querySelectorAll('button.picture')];
  let current = 0;
  const show = (index) => {
    current = index;
    const small = buttons[index].querySelector('img');
    image.src = small.src;
    image.alt = small.alt;
    const text = buttons[index].closest('figure').querySelector('figcaption');
    caption.replaceChildren(text.cloneNode(true));
  };
  const step = (by) => {
    for (let n = current + by; n >= 0 && n < buttons.length; n += by) {
      if (!buttons[n].closest('figure').hidden) return show(n);
    }
  };
  buttons.forEach((button, index) => button.addEventListener('click', () => {
    show(index);
    dialog.showModal();
  }));
  dialog.querySelector('.previous').addEventListener('click', () => step(-1));
  dialog.querySelector('.next').addEventListener('click', () => step(1));
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog || event.target === image) dialog.close();
  });
  dialog.addEventListener('keydown', (event) => {
    if (event.key === 'ArrowLeft') step(-1);
    if (event.key === 'ArrowRight') step(1);
  });
  dialog.addEventListener('close', () => buttons[current].focus());
}

// ------------------------------------------------------- links and paper
const openRule = () => {
  const id = decodeURIComponent(location.hash.slice(1));
  const row = id && document.getElementById(id);
  const details = row && row.closest('details');
  if (details && !details.open) {
    details.open = true;
    row.scrollIntoView();
  }
};
addEventListener('hashchange', openRule);
openRule();

let closed = [];
addEventListener('beforeprint', () => {
  closed = [...document.querySelectorAll('details:not([open])')];
  for (const details of closed) details.open = true;
});
addEventListener('afterprint', () => {
  for (const details of closed) details.open = false;
});

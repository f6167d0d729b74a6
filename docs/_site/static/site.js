// What the theme leaves out for those who use a keyboard or a screen reader.
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = "2";
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");

// A long name in a table breaks before a letter, behind one of . _ / = and (.
for (const each of document.querySelectorAll("td code .pre")) each.innerHTML = each.innerHTML.replace(/[._/=(](?=[a-z])/gi, "$&<wbr>");

// A block of one line wraps on a phone; longer ones scroll, so that their lines stay apart.
for (const each of document.querySelectorAll("pre")) each.classList.toggle("one-line", !each.textContent.trim().includes("\n"));

// What is wider than its place can be scrolled by arrow keys once it has the focus.
const wide = new ResizeObserver((entries) => {
  for (const {target} of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const each of document.querySelectorAll("pre, .table-wrapper, p:has(> img)")) wide.observe(each);

// The methods: a box that filters the table, and a switch for the trainer, which also shows that trainer's line.
const heads = (table) => [...table.querySelectorAll("th")].map((th) => th.textContent.trim());
const tables = [...document.querySelectorAll("table")];
const listed = tables.find((table) => heads(table).includes("runs in"));
const lines = tables.find((table) => heads(table).join() === "in,line");
if (listed && lines) {
  const place = heads(listed).indexOf("runs in");
  const line = new Map([...lines.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
  const trainers = [...line.keys()].filter((name) => !["your loop", "a recipe", "the command line"].includes(name));
  const runs = (row, trainer) => {
    const [, but, names] = row.cells[place].textContent.match(/^(all but )?([^(;]*)/);
    return names.trim() === "all" || names.split(",").some((name) => name.trim() === trainer) !== Boolean(but);
  };
  const form = document.createElement("form");
  form.className = "methods";
  form.innerHTML = `<label>Find <input type="search" placeholder="clip, entropy, 2503.14476"></label>
    <label>Trainer <select><option>any</option>${trainers.map((name) => `<option>${name}</option>`).join("")}</select></label>
    <output></output>`;
  const [words, trainer, said] = form.querySelectorAll("input, select, output");
  const show = () => {
    let count = 0;
    for (const row of listed.tBodies[0].rows) {
      const fits = row.textContent.toLowerCase().includes(words.value.trim().toLowerCase());
      row.hidden = !(fits && (trainer.value === "any" || runs(row, trainer.value)));
      count += !row.hidden;
    }
    said.textContent = `${count} methods` + (trainer.value === "any" ? "" : `; switch one on with ${line.get(trainer.value)}`);
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  (listed.closest(".table-wrapper") ?? listed).before(form);
  show();
}

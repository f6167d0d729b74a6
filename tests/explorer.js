// What tests/test_explorer.py asks of docs/explorer.html, in the page itself.

/** Of each rule, with its first values and with others, all that bandpo says of it too; of each address, what is set. */
function ask(places, ratios, addresses) {
  fetch("https://example.org/").catch(() => {});
  const image = document.createElement("img");
  image.src = "https://example.org/a.png";
  document.body.append(image);
  return { rules: METHODS.flatMap((method) => askRule(method, places, ratios)), pages: addresses.map(askPage) };
}

function askRule(method, places, ratios) {
  const first = method.fields.map((field) => field[1]);
  const other = method.fields.map(([, value, , most]) => (value + Math.min(most, 3 * value)) / 2);
  return [first, other].map((values) => {
    const node = method.node(...values), rule = ruleOf(node);
    const grid = (key) => [true, false].map((good) =>
      places.map((p) => ratios.map((r) => surrogate(node, good, r, rule.bounds(p))[key])));
    return {
      node, python: python(node), word: word(node), yaml: yaml(node), loop: linesFor(node)[0][1],
      bounds: places.map(rule.bounds), value: grid("value"), slope: grid("slope"),
    };
  });
}

/** The address that the page makes of what an address set. */
function askPage(address) {
  location.hash = address;
  readAddress();
  draw();
  return addressOf();
}

function answer(value) {
  document.getElementById("told").textContent = JSON.stringify(value, (key, each) =>
    typeof each === "number" && !Number.isFinite(each) ? String(each) : each);
}

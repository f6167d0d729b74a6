// Every page of the built site by axe, in light and dark and as wide as a screen and a phone: what is serious, and what runs
// off the edge. CONTRIBUTING.md ("The site") has the command.
const fs = require("fs");
const path = require("path");
const {pathToFileURL} = require("url");
const puppeteer = require("puppeteer-core");

(async () => {
  const [folder, ...pages] = process.argv.slice(2);
  const all = pages.length ? pages : fs.readdirSync(folder, {recursive: true}).filter((name) => /^(?!files).*\.html$/.test(name)).sort();
  const executablePath = ["chromium", "chromium-browser", "google-chrome"].map((name) => `/usr/bin/${name}`).find(fs.existsSync);
  const browser = await puppeteer.launch({executablePath, args: ["--no-sandbox", "--disable-gpu"]});
  const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  const page = await browser.newPage();
  await page.setBypassCSP(true);
  let faults = 0;
  for (const scheme of ["light", "dark"]) {
    await page.emulateMediaFeatures([{name: "prefers-color-scheme", value: scheme}]);
    for (const width of [1200, 390]) {
      await page.setViewport({width, height: 800, isMobile: width < 500, hasTouch: width < 500});
      for (const name of all) {
        await page.goto(pathToFileURL(path.join(folder, name)).href);
        await page.evaluate(axe);
        const violations = await page.evaluate(async () => {
          const {violations} = await window.axe.run();
          const found = violations.filter(({impact}) => ["serious", "critical"].includes(impact)).map(({id, nodes}) =>
            [id, `${nodes.length} times`, nodes[0].html.slice(0, 150), nodes[0].failureSummary.split("\n")[1]].join(" | "));
          const {scrollWidth, clientWidth} = document.documentElement;
          return scrollWidth > clientWidth ? [...found, `runs off the edge | ${scrollWidth} px of ${clientWidth}`] : found;
        });
        for (const each of violations) console.log(`${name} ${scheme} ${width} | ${each}`);
        faults += violations.length;
      }
    }
  }
  await browser.close();
  process.exitCode = faults ? 1 : 0;
})();

// What the theme leaves out for those who use a keyboard or a screen reader.
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = "2";
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");

// What is wider than its place can be scrolled by arrow keys once it has the focus.
const wide = new ResizeObserver((entries) => {
  for (const {target} of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const each of document.querySelectorAll("pre, .table-wrapper, p:has(> img)")) wide.observe(each);
